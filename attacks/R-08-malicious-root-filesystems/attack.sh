# Makes a root file system that lies at one place. Arguments: the root, the place in it, the kind of lie, where the lie leads.
set -e
root=$1 place=$2 kind=$3 target=$4
mkdir -p "$root"/{proc,sys,dev/pts,dev/shm,etc,run,tmp,workspace,home/sandbox,.bellglass/channel,.bellglass/spool}
touch "$root/.bellglass/guest"
rm -rf "${root:?}/$place"
up=../../../../../../../../../../../..
case $kind in
absolute) ln -s "$target" "$root/$place" ;;
relative) ln -s "$up$target" "$root/$place" ;;
root) ln -s / "$root/$place" ;;
dangling) ln -s /no/such/place "$root/$place" ;;
loop) ln -s "${place##*/}" "$root/$place" ;;
magic) ln -s /proc/self/root "$root/$place" ;;
file) echo lie >"$root/$place" ;;
pipe) mkfifo "$root/$place" ;;
device) mknod "$root/$place" c 1 3 ;;
full) mkdir "$root/$place" && mkdir -p "$root/$place/self" "$root/$place/sys/kernel" && echo lie >"$root/$place/self/status" ;;
esac
