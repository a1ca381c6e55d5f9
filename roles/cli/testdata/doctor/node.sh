# A node with containerd, a bridge with published ports, a ptp network, and three pods. $WORK is empty, $SELF
# is the program.
set -e
mkdir $WORK/etc $WORK/path
mount -t tmpfs none $WORK/etc
mkdir $WORK/etc/upper $WORK/etc/work
mount -t overlay -o lowerdir=/etc,upperdir=$WORK/etc/upper,workdir=$WORK/etc/work overlay /etc
rm -rf /etc/cni /etc/containers /etc/crio /etc/containerd /etc/kubernetes
for dir in /run /opt /var/lib; do mount -t tmpfs -o mode=755 none $dir; done
for tool in sh ip nft iptables bridge tc nsenter unshare mount umount mkdir ln rm cat sed grep chmod cp mv touch base64 flock sysctl kill head; do
	ln -s $(command -v $tool) $WORK/path/$tool
done
ln -s $SELF $WORK/path/product
ln -s $SELF $WORK/path/agent
ln -s $SELF $WORK/path/listen
touch $WORK/path/containerd
chmod +x $WORK/path/containerd
PATH=$WORK/path
ip link set lo up
echo 1 >/proc/sys/net/ipv4/ip_forward
mkdir -p /opt/cni/bin /etc/cni/net.d /run/ns /run/flannel
ln -s $SELF /opt/cni/bin/cnibox
for role in bridge ptp vxlan multi loopback macvlan host-local dhcp portmap firewall; do ln -s cnibox /opt/cni/bin/$role; done
net=/etc/cni/net.d/10-net.conflist
cat >$net <<'EOF'
{"cniVersion": "1.0.0", "name": "net", "plugins": [
  {"type": "bridge", "bridge": "br78", "isDefaultGateway": true, "ipMasq": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.78.0.0/24"}]]}},
  {"type": "portmap", "capabilities": {"portMappings": true}},
  {"type": "firewall", "ingressPolicy": "same-bridge"}]}
EOF
cat >/etc/cni/net.d/20-ptp.conflist <<'EOF'
{"cniVersion": "1.0.0", "name": "ptp", "plugins": [
  {"type": "ptp", "ipMasq": true, "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.79.0.0/24"}]]}}]}
EOF
pod() { # FILE NAME [FLAG…]
	file=$1 id=$2
	shift 2
	touch /run/ns/$id
	unshare --net=/run/ns/$id sh -c :
	product add $file $id /run/ns/$id "$@" >/dev/null
}
in_pod() { # NAME COMMAND…
	ns=$1
	shift
	nsenter --net=/run/ns/$ns "$@"
}
# veth of a pod on a network
veth() { ip -o link | sed -n "/$2.eth0.$1/s/^[0-9]*: \(veth[0-9a-f]*\)@.*/\1/p"; }
listening() { # SOCKET… sets $listener
	listen "$@" >$WORK/listening &
	listener=$!
	listeners="$listeners $listener"
	trap 'kill $listeners' EXIT
	until [ -s $WORK/listening ]; do :; done
	rm $WORK/listening
}
plugin() { # a plugin of another program
	printf '#!/bin/sh\n%s\n' "$2" >/opt/cni/bin/$1
	chmod ${3-755} /opt/cni/bin/$1
}
pod $net p1 --cap '{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]}'
pod $net p2
pod /etc/cni/net.d/20-ptp.conflist p3
ip link add eth0 type veth peer name wire
ip addr add 192.0.2.1/24 dev eth0
ip link set eth0 up
ip link set wire up
ip route add default via 192.0.2.9
until ip link show eth0 | grep -q 'state UP'; do :; done
