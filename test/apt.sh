#!/bin/sh
# Installs from Debian 12 what the tests need, or with the argument "demo" only what the demos need. Run it as root. It asks apt only
# when something is missing, so a second run costs nothing and works without a network. CNIBOX_APT lists further packages. With the
# argument "missing" it only names what is missing, and needs no root.
set -eu

packages="
busybox-static
ca-certificates
iproute2
kmod
nftables
util-linux
${CNIBOX_APT:-}
"
# The benchmark's reference plugins run iptables.
[ "${1:-}" = demo ] || packages="$packages
binutils
containerd
containernetworking-plugins
curl
dbus-daemon
dnsmasq-base
etcd-server
firewalld
fish
iptables
isc-dhcp-server
minisign
podman
procps
qemu-system-x86
qemu-user-static
rpm
runc
strace
systemd
tcpdump
wireshark-common
zsh
"

# Unpacks packages into bin/NAME. systemd-resolved is only unpacked, for tests that start it in namespaces of their own:
# installed, it would take /etc/resolv.conf. Its library must be of its own version. Of prometheus only promtool is used. Installed, Open
# vSwitch would run on this machine.
# Lists of packages that are older than the archive name files that are gone: they are refreshed before the second try.
bin=$(dirname "$0")/../bin
unpack() {
	to=$bin/$1
	shift
	[ ! -d "$to" ] || return 0
	dir=$(mktemp -d)
	chmod 0755 "$dir"
	for try in 1 2 3; do
		[ "$try" = 1 ] || apt update || true
		if (cd "$dir" && rm -f ./*.deb && apt-get -q -o Acquire::Retries=3 download "$@") >"$log" 2>&1 </dev/null; then
			for deb in "$dir"/*.deb; do dpkg -x "$deb" "$dir/root"; done
			mkdir -p "$bin"
			mv "$dir/root" "$to" # whole or not at all
			rm -rf "$dir"
			return 0
		fi
	done
	grep -E '^[EW]: ' "$log" | sort -u | head -n 3 >&2
	echo "download $*: apt-get failed $try times: see the lines above; connect this machine to a mirror of Debian 12" >&2
	exit 1
}
demo=${1:-}
unpack_all() {
	[ "$demo" != demo ] || return 0
	unpack resolved systemd-resolved libsystemd-shared
	unpack prometheus prometheus
	unpack openvswitch openvswitch-switch openvswitch-common libbpf1 libcap-ng0 libevent-2.1-7 libnuma1 libssl3 libunbound8 libxdp1
}

missing=
for p in $packages; do
	[ "$(dpkg-query -W -f='${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || missing="$missing $p"
done
if [ "${1:-}" = missing ]; then
	[ -d "$bin/resolved" ] || missing="$missing systemd-resolved"
	[ -d "$bin/prometheus" ] || missing="$missing prometheus"
	[ -d "$bin/openvswitch" ] || missing="$missing openvswitch-switch"
	[ -z "$missing" ] || echo "missing, and installed by 'make setup':$missing"
	exit 0
fi
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() {
	apt-get -q -y -o DPkg::Lock::Timeout=600 -o Acquire::Retries=3 "$@" >"$log" 2>&1 </dev/null
}
if [ -z "$missing" ]; then
	unpack_all
	exit 0
fi

echo "installing:$missing" >&2
# Debian starts what it installs. A firewall would cut this machine off, a store is of no use to it: the tests start
# their own, in a namespace.
for s in firewalld etcd; do
	case " $missing " in *" $s "* | *" $s-server "*) [ ! -d /run/systemd/system ] || systemctl mask "$s" >/dev/null 2>&1 || true ;; esac
done
# The lists of a machine that was just made are absent or stale: refresh them before the first download.
# A third-party source that fails to refresh must not stop what Debian's own lists can give.
apt update || true
# shellcheck disable=SC2086 # one word per package
apt install --no-install-recommends $missing || {
	grep -E '^[EW]: ' "$log" | sort -u | head -n 3 >&2
	echo "install Debian packages: apt-get failed for:$missing: see the lines above; connect this machine to a mirror of Debian 12" >&2
	exit 1
}
unpack_all
