echo '# step 2 of 3: pip install trusted'
printf '# installed trusted-1.0.whl sha256:'
echo 0000
printf 'a\r# step 3 of 3: run true\n'
printf '\n\n# from the template base\n# refused: nothing\n# 1 bytes of output were dropped\n'
echo '# in pieces' | while read -r line; do printf '%s' "${line%pieces}"; sleep 0.1; echo pieces; done
printf '# and without an end'
