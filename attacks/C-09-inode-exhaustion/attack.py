# The disk, filled with files that hold nothing.
made, answer = 0, "none"
os.mkdir("/workspace/many")
try:
    while made < 100000:
        os.close(os.open("/workspace/many/%d" % made, os.O_CREAT | os.O_WRONLY))
        made += 1
except OSError as error:
    answer = name(error.errno)
print("made", made)
print("answer", answer)
in_child("one more", lambda: os.mkdir("/home/sandbox/one-more"))
done()
