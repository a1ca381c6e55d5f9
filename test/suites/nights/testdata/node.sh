# A node with containerd, a dual-stack bridge network with published ports, a ptp network, three pods that answer HTTP, and a router
# with a service behind it. $WORK is empty, $SELF is the program. Each step of a night reads this file; `boot` makes the node.
set -e
PATH=$WORK/path
net=/etc/cni/net.d/10-net.conflist
ptp=/etc/cni/net.d/20-ptp.conflist
service=198.51.100.7
pods='10.78.0.2 10.78.0.3 10.79.0.2'

boot() {
	hostname node1
	mkdir $WORK/etc
	mount -t tmpfs none $WORK/etc
	mkdir $WORK/etc/upper $WORK/etc/work
	mount -t overlay -o lowerdir=/etc,upperdir=$WORK/etc/upper,workdir=$WORK/etc/work overlay /etc
	rm -rf /etc/cni /etc/containers /etc/crio /etc/containerd /etc/kubernetes
	for dir in /run /opt /var/lib; do mount -t tmpfs -o mode=755 none $dir; done
	touch $WORK/path/containerd
	chmod +x $WORK/path/containerd
	mkdir -p /opt/cni/bin /etc/cni/net.d /run/netns
	ln -s $SELF /opt/cni/bin/cnibox
	for role in bridge ptp vxlan loopback macvlan host-local portmap firewall tuning; do ln -s cnibox /opt/cni/bin/$role; done
	cat >$net <<-'JSON'
	{"cniVersion": "1.0.0", "name": "net", "plugins": [
	  {"type": "bridge", "bridge": "br78", "isDefaultGateway": true, "ipMasq": true,
	   "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.78.0.0/24"}], [{"subnet": "fd78::/64"}]]}},
	  {"type": "portmap", "capabilities": {"portMappings": true}},
	  {"type": "firewall", "ingressPolicy": "same-bridge"}]}
	JSON
	cat >$ptp <<-'JSON'
	{"cniVersion": "1.0.0", "name": "ptp", "plugins": [
	  {"type": "ptp", "ipMasq": true, "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.79.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
	JSON
	ip link set lo up
	echo 1 >/proc/sys/net/ipv4/ip_forward
	echo 1 >/proc/sys/net/ipv6/conf/all/forwarding
	touch /run/netns/out
	unshare --net=/run/netns/out true
	ip link add eth0 address 02:00:00:00:00:01 type veth peer name eth0 address 02:00:00:00:00:09 netns out
	in_pod out sh -c "ip link set lo up; ip link set eth0 up; ip addr add 192.0.2.9/24 dev eth0; ip addr add 2001:db8::9/64 dev eth0 nodad
		ip addr add $service/32 dev lo; ip addr add 2001:db8:7::7/128 dev lo; httpd -p 80 -h $WORK"
	ip addr add 192.0.2.1/24 dev eth0
	ip addr add 2001:db8::1/64 dev eth0 nodad
	ip link set eth0 up
	ip route add default via 192.0.2.9
	ip -6 route add default via 2001:db8::9
	until ip link show eth0 | grep -q "state UP"; do :; done
	httpd -p 127.0.0.1:9000 -h $WORK
	pod $net p1 --cap '{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]}' --args 'K8S_POD_NAMESPACE=default;K8S_POD_NAME=web'
	pod $net p2
	pod $ptp p3
}
pod() { # FILE NAME [FLAG…]
	file=$1 id=$2
	shift 2
	touch /run/netns/$id
	unshare --net=/run/netns/$id true
	cnibox add $file $id /run/netns/$id "$@" >/dev/null
	in_pod $id httpd -p 80 -h $WORK
}
in_pod() { # NAME COMMAND…
	ns=$1
	shift
	nsenter --net=/run/netns/$ns "$@"
}
# veth of a pod on a network
veth() { ip -o link | sed -n "/$2.eth0.$1/s/^[0-9]*: \(veth[0-9a-f]*\)@.*/\1/p"; }
address() { in_pod $1 ip -o -4 addr show dev eth0 | sed 's,.*inet \([0-9.]*\)/.*,\1,'; }
get() { # NAME ADDRESS PORT: whether a server answers a process there
	in_pod $1 sh -c "printf 'GET / HTTP/1.0\r\n\r\n' | nc -w 1 $2 $3" 2>/dev/null | grep -q HTTP
}
plugin() { # NAME SCRIPT: a plugin of another program
	printf '#!/bin/sh\n%s\n' "$2" >/opt/cni/bin/$1
	chmod 755 /opt/cni/bin/$1
}

# census prints what each pod has: addresses, routes, egress, the traffic to other pods, and the published port.
census() {
	for file in /run/netns/*; do
		ns=${file##*/}
		[ $ns = out ] && continue
		in_pod $ns ip -o addr show dev eth0 scope global 2>/dev/null | sed "s,.*\(inet6\? [^ ]*\).*,$ns \1,"
		{ in_pod $ns ip route && in_pod $ns ip -6 route; } 2>/dev/null | sed "/fe80/d;s,^,$ns route ,"
		in_pod $ns sh -c "for to in $service $pods; do { printf 'GET / HTTP/1.0\r\n\r\n' | timeout 3 nc -w 1 \$to 80 | grep -q HTTP && echo $ns reaches \$to; } & done 2>/dev/null; wait" &
	done
	{ get out 192.0.2.1 8080 && echo port 8080; } &
	wait
}
