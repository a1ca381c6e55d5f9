#!/bin/sh
# Moves the packages of roles/ into folders by what they are for, and writes their new paths into every file that names them. To carry
# work over that was begun before the move: rebase it, with git's renames, onto the commit of the move, and run `sh test/move-roles.sh paths`.
set -eu
cd "$(dirname "$0")/.."
moves='attach call/attach
attachment call/attachment
dispatch call/dispatch
leasefiles call/leasefiles
leasing call/leasing
migrate call/migrate
netlist call/netlist
node call/node
plugindir call/plugindir
recovery call/recovery
result call/result
sticky call/sticky
azureview cloud/azureview
metadata cloud/metadata
daemon/agent cluster/agent
daemon/dhcp cluster/dhcp
daemon/nodeipam cluster/nodeipam
daemon/process cluster/process
ranges cluster/ranges
advice see/advice
cli/capture see/capture
cli/doctor see/doctor
cli/lint see/lint
cli/topo see/topo
cli/trace see/trace
cli/ui see/ui
tabletest rolestest/tabletest'

if [ "${1:-}" != paths ]; then
	echo "$moves" | while read -r from to; do
		mkdir -p "roles/$(dirname "$to")"
		git mv "roles/$from" "roles/$to"
	done
fi
script=$(echo "$moves" | while read -r from to; do
	# not the whole words of another path, such as roles/attachment for roles/attach
	printf 's#\\broles/%s\\b#roles/%s#g;' "$from" "$to"
done)
git grep -lzE "roles/($(echo "$moves" | cut -d ' ' -f 1 | tr '\n' '|' | sed 's/|$//'))\b" -- . ':!test/move-roles.sh' ':!CHANGELOG.md' | xargs -0 sed -i "$script"
gofmt -w $(git diff --name-only HEAD -- '*.go' | while read -r f; do [ -f "$f" ] && echo "$f"; done)
