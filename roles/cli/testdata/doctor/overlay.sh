# An agent with another node in its registry, and a pod.
mkdir -p /var/lib/cnibox/cluster/nodes
[ -n "$NOCONFIG" ] || echo '{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}' >/var/lib/cnibox/cluster/config.json
[ -n "$ALONE" ] || cat >/var/lib/cnibox/cluster/nodes/n2.json <<'EOF'
{"name": "n2", "podCIDRs": ["10.244.7.0/24"], "publicIP": "192.0.2.2", "backendType": "vxlan", "backendData": {"VNI": 1, "VtepMAC": "4e:da:09:c2:00:02"}}
EOF
agent --iface eth0 --node-name n1 --ip-masq >$WORK/agent.log 2>&1 &
agent=$!
trap 'kill $agent' EXIT
overlay=/etc/cni/net.d/30-vxlan.conflist
echo '{"cniVersion": "1.0.0", "name": "cbr0", "plugins": [{"type": "vxlan"}]}' >$overlay
if [ -n "$NOCONFIG" ]; then
	until product agent status >$WORK/status 2>&1 || grep -q 'not ready' $WORK/status; do :; done
else
	until product agent status >$WORK/status 2>&1 || [ $? = 4 ]; do :; done # 4: the other node does not answer, since there is none
	pod $overlay p4
fi
# end the agent, and leave what flanneld would
flanneld() {
	trap - EXIT
	kill $agent
	wait $agent || true
	rm /run/cnibox/overlay.json
}
