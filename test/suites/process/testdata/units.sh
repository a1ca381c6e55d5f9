# Run by systemd as a service after the daemons began, with their sandboxes: the DHCP daemon serves a container whose namespace is
# mounted after it began, and the agent has made its network and adds a peer.
set -eux
cnibox=$1
ip link add br0 type bridge
ip addr add 10.5.0.1/24 dev br0
ip link set br0 up
dnsmasq --conf-file=/dev/null --port=0 --bind-interfaces --interface=br0 --dhcp-range=10.5.0.10,10.5.0.20 --leasefile-ro --pid-file=
ip netns add container
"$cnibox" add /run/test/dhcp.conflist container /run/netns/container
ip -n container -4 addr show eth0 | grep 10.5.0.
"$cnibox" state dhcp | grep 10.5.0.
"$cnibox" del /run/test/dhcp.conflist container /run/netns/container

systemctl start cnibox-agent # returns when pods can be attached
ip -d link show flannel.1
cp /run/test/peer.json /run/cluster/nodes/peer.json
set +x
for try in $(seq 1200); do
	if ip route | grep '10.244.9.0/24.*dev flannel.1'; then break; fi
	sleep 0.1
done
set -x
ip route | grep '10.244.9.0/24.*dev flannel.1'
nft list table inet cnibox_overlay | grep masquerade
