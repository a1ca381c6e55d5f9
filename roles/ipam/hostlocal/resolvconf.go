package hostlocal

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"
)

// maxResolvConf limits the size of a resolv.conf.
const maxResolvConf = 1 << 20

// readResolvConf reads a file in the format of resolv.conf(5). It follows symbolic links, because
// /etc/resolv.conf is often one. Other files that are not regular are an error, and reading them
// does not block.
func readResolvConf(path string) (types.DNS, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return types.DNS{}, fmt.Errorf("read resolvConf: %w", err)
	}
	defer f.Close()
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() {
		return types.DNS{}, fmt.Errorf("read resolvConf %q: not a regular file", path)
	}
	dns, err := parseResolvConf(io.LimitReader(f, maxResolvConf))
	if err != nil {
		return types.DNS{}, fmt.Errorf("read resolvConf %q: %w", path, err)
	}
	return dns, nil
}

// parseResolvConf returns nameservers, search and options of all lines, and the last domain.
func parseResolvConf(r io.Reader) (types.DNS, error) {
	var dns types.DNS
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) < 2 {
			continue
		}
		switch words[0] {
		case "nameserver":
			dns.Nameservers = append(dns.Nameservers, words[1])
		case "domain":
			dns.Domain = words[1]
		case "search":
			dns.Search = append(dns.Search, words[1:]...)
		case "options":
			dns.Options = append(dns.Options, words[1:]...)
		}
	}
	return dns, lines.Err()
}
