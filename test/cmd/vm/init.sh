#!/bin/busybox sh
# The machine's first process. The words of the report are read by qemu.go.
/bin/busybox mkdir -p /proc /sys /dev /run /tmp /sbin /usr/bin /usr/sbin /root /var/lib
/bin/busybox --install -s /bin
export PATH=/usr/sbin:/bin:/sbin HOME=/root TMPDIR=/tmp CNIBOX_TEST_VM=1
. /etc/environment
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
mount -t tmpfs run /run
mkdir -p /dev/pts /dev/shm /run/netns /sys/fs/cgroup
mount -t devpts pts /dev/pts
mount -t cgroup2 cgroup /sys/fs/cgroup
ln -s /proc/self/fd /dev/fd
ln -s /run /var/run
ln -s /bin/busybox /sbin/modprobe
mount --make-rshared /

# A terminal would turn \n into \r\n and echo what the other side says.
report=/dev/$(cat /etc/report)
exec 3>"$report"
stty raw -echo <"$report"
mark=$(sed -n 's/.*cnibox\.mark=\([^ ]*\).*/\1/p' /proc/cmdline)

for m in $(cat /etc/modules); do
	case $m in
	*\?) modprobe -q "${m%\?}" ;; # it may be in another module
	*) modprobe "$m" || echo "$mark fault load module $m" >&3 ;;
	esac
done
[ -e /complete ] || echo "$mark fault unpack the RAM disk: give the machine more memory" >&3
ip link set lo up
for n in 0 1; do
	ip link set "eth$n" name "nic$n" || echo "$mark fault find network device $n" >&3
done
# A network card with virtual functions, if the machine has one. Its functions have no address before it is up.
for f in /sys/class/net/*/device/sriov_numvfs; do
	[ -e "$f" ] || continue
	pf=${f#/sys/class/net/}
	ip link set "${pf%%/*}" name pf0 && ip link set pf0 up && echo 4 >/sys/class/net/pf0/device/sriov_numvfs || echo "$mark fault make virtual functions" >&3
done
echo "$mark ready $(uname -r) $(cut -d' ' -f1 /proc/uptime)" >&3

while read -r pkg run; do
	echo "$mark begin $pkg" >&3
	cd "/src/$pkg" || continue
	./suite.test -test.v -test.timeout="$(cat /etc/timeout)" -test.run="$run" -test.skip="$(cat /etc/skip)" >&3 2>&3 </dev/null
	echo "$mark end $pkg $?" >&3
done </etc/suites
echo "$mark done" >&3
poweroff -f
