#!/bin/sh
# Runs after the files of the package are in place, at the first installation and at each upgrade.
set -e
# 3: plugins of other programs were kept, and are named.
/usr/bin/cnibox install --dir /opt/cni/bin || [ $? = 3 ]
if command -v restorecon >/dev/null; then
	restorecon -R /opt/cni
fi
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	systemctl try-restart cnibox-agent.service cni-dhcp.service
fi
