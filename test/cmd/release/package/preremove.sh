#!/bin/sh
# Runs before the files of the package are removed. At an upgrade ("upgrade" or 1) the plugins stay, since
# containers are attached.
set -e
case "${1:-}" in upgrade | failed-upgrade | 1) exit 0 ;; esac
# After an administrator's own 'cnibox uninstall' nothing is left to do.
if [ -e /opt/cni/bin/cnibox ] && ! /usr/bin/cnibox uninstall --drain --if-idle --dir /opt/cni/bin; then
	# The runtime needs the plugins to detach the containers. They are gone if one was attached meanwhile.
	/usr/bin/cnibox install --quiet --dir /opt/cni/bin || [ $? = 3 ]
	echo "cnibox: containers are attached. Detach them and repeat the removal, or give them up with 'cnibox uninstall'." >&2
	exit 1
fi
if [ -d /run/systemd/system ]; then
	systemctl disable --now cnibox-agent.service cni-dhcp.service cni-dhcp.socket
fi
