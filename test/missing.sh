#!/bin/sh
# Says, before `make test` begins, what it fetches and builds and how long that takes, and that later runs need no network.
set -eu
cd "$(dirname "$0")/.."
if [ "$(id -u)" = 0 ] && ! unshare --mount --propagation private true 2>/dev/null; then
	echo "make test: this process may not make mounts private: for a chroot in DIR, run 'mount --bind DIR DIR' before chroot; in a container, allow CAP_SYS_ADMIN" >&2
	exit 1
fi
packages=$(sh test/apt.sh missing)
lacks=
[ -z "$packages" ] || lacks="$lacks
  Debian packages, about 5 minutes:${packages##*:}"
# Without a network and with what is there, go list says whether a module is absent.
GOPROXY=off "${GO:-go}" list -deps -test ./... >/dev/null 2>&1 || lacks="$lacks
  Go modules, about 1 minute"
[ -e bin/peers/bridge ] || lacks="$lacks
  the reference plugins, which it builds in about 2 minutes"
[ -d bin/nft/bullseye ] && [ -d bin/nft/trixie ] || lacks="$lacks
  nft of Debian 11 and 13, about 1 minute"
[ -z "$lacks" ] || echo "make test: this machine lacks what the tests need, and make fetches it now, once:$lacks
  and Go compiles each package once, about 10 minutes of two processors. Later runs need no network and take eight minutes."
