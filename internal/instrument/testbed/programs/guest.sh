# guest.sh FROM TO TRANSFER: the initramfs FROM with NetPIPE, sockperf, Open MPI and what those load.
set -e
root=$2.root
rm -rf "$root" && mkdir -p "$root/usr/bin"
trap 'rm -rf "$root"' EXIT
lib=/usr/lib/x86_64-linux-gnu
list="$(for p in NPtcp NPopenmpi sockperf mpirun orted; do command -v $p; done)
$(ls $lib/openmpi/lib/openmpi3/mca_*.so $lib/ucx/*.so* $lib/pmix2/lib/pmix/*.so $lib/libnss_files.so.2 $lib/rsocket/librspreload.so 2>/dev/null)"
libs=$(ldd $list "$3" 2>/dev/null | awk '$3 ~ /^\// { print $3 }' | sort -u | sed 's,^/lib/,/usr/lib/,')
extra=$(find /etc/openmpi /usr/share/openmpi $lib/pmix2/share -type f -o -type l 2>/dev/null)
for f in $list $libs $extra; do [ -e "$root$f" ] || cp -L --parents "$f" "$root"; done
cp "$3" "$root/usr/bin/transfer"
printf '#!/bin/sh\nto=$1; shift\necho "$*" | nc "$to" 7777\n' >"$root/usr/bin/rsh-guest"
printf '#!/bin/sh\nexec vrdma run --quiet --socket /run/vrdma.sock -- orted "$@"\n' >"$root/usr/bin/orted-device"
cat >"$root/usr/bin/begin" <<'END'
number=$(sed 's/.*:0*//' /sys/class/net/eth1/address)
hostname machine$number
n=0; while [ $n -lt 32 ]; do n=$((n + 1)); echo "10.98.0.$n machine$n" >>/etc/hosts; done
# A second ordinary card is on the same segment: each answers and asks for its own address only, or what is sent to one may
# come in through the other.
echo 1 >/proc/sys/net/ipv4/conf/all/arp_ignore
echo 2 >/proc/sys/net/ipv4/conf/all/arp_announce
/usr/sbin/ip link set eth1 up && /usr/sbin/ip address add 10.99.0.$number/24 dev eth1
nc -ll -p $2 -e /bin/sh &
mkdir -p /var/run /var/tmp
ln -sf /proc/self/fd/1 /dev/stdout
echo tcp 6 TCP >/etc/protocols
exec vrdma bench agent --line "$1" --device rxe_kernel
END
chmod 755 "$root"/usr/bin/*
{ cat "$1"; cd "$root" && find . | cpio --quiet -o -H newc -R 0:0; } >"$2"
