#!/bin/sh
# Writes what is generated. `make generate` runs it in namespaces of their own.
#   code     api/next.txt, the tree in CONTRIBUTING.md, docs/cli.md, docs/differences.md, the checks in docs/doctor.md, the conflists in
#            docs/examples.md, the features in docs/kernels.md, docs/metrics.md, the roles in docs/roles.md, and the texts of
#            `cnibox lint --explain`; it needs no root
#   outputs  what commands print in docs/doctor.md, docs/migrate.md and docs/trace.md; it needs root and bin/peers. The section on flannel needs flannel's
#            daemon: with bin/kube/flanneld, `go test -tags kube -run TestFlanneldMigrate ./roles/cluster/agent -update` writes it
#   goldens PACKAGE  the results in the package's testdata: read their diff
set -eu
export CGO_ENABLED=0 GOFLAGS=-trimpath
update() {
	tests=$1
	shift
	"${GO:-go}" test -tags urfave_cli_no_docs -vet off -ldflags '-s -w' -count 1 -run "^Test($tests)\$" "$@" -update
}
case "${1:-}" in
code)
	update 'API|Docs|DoctorDocs|Document|Kernels|KeyDocs|MetricsDocumented|Roles|ShownConflists|Tree' \
		./test/suites/api ./test/suites/diff ./test/suites/docs ./roles/cli ./roles/see/lint ./roles/cluster/agent
	;;
outputs)
	update 'DiffDocs|MigrateAzure|MigrateReference|TraceDocumented' \
		./roles/cli ./test/suites/process ./test/suites/takeover
	;;
goldens)
	update Golden "$2"
	;;
*)
	echo "usage: $0 code|outputs|goldens PACKAGE" >&2
	exit 2
	;;
esac
