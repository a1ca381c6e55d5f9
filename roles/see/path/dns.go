package path

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/netops/packets"
	"github.com/cnibox/cnibox/roles/see/advice"
	"github.com/cnibox/cnibox/roles/see/view"
)

// Constants of DNS (RFC 1035).
const (
	dnsPort       = 53
	dnsID         = 0x6362
	dnsHeader     = 12
	dnsRecursion  = 1 << 8
	dnsIsAnswer   = 1 << 15
	dnsCode       = 0xf
	dnsTypeA      = 1
	dnsTypeAAAA   = 28
	dnsClassIN    = 1
	dnsMaxLabel   = 63
	dnsMaxMessage = 4096
)

// dnsQuery returns a query for the addresses of a name.
func dnsQuery(name string, v6 bool) ([]byte, error) {
	b := make([]byte, dnsHeader)
	for i, v := range []uint16{dnsID, dnsRecursion, 1} {
		binary.BigEndian.PutUint16(b[2*i:], v)
	}
	for label := range strings.SplitSeq(strings.TrimSuffix(name, "."), ".") {
		if label == "" || len(label) > dnsMaxLabel {
			return nil, advice.Usagef("cnibox help path", "--dns %q: want a name such as example.com", name)
		}
		b = append(append(b, byte(len(label))), label...)
	}
	kind := byte(dnsTypeA)
	if v6 {
		kind = dnsTypeAAAA
	}
	return append(b, 0, 0, kind, 0, dnsClassIN), nil
}

// dnsText describes an answer, or returns "" for another message.
func dnsText(b []byte) string {
	if len(b) < dnsHeader || binary.BigEndian.Uint16(b) != dnsID || binary.BigEndian.Uint16(b[2:])&dnsIsAnswer == 0 {
		return ""
	}
	code := binary.BigEndian.Uint16(b[2:]) & dnsCode
	if text := map[uint16]string{2: "SERVFAIL", 3: "NXDOMAIN: no such name", 5: "REFUSED"}[code]; text != "" || code != 0 {
		return fmt.Sprintf("code %d %s", code, text)
	}
	if n := binary.BigEndian.Uint16(b[6:]); n != 1 {
		return fmt.Sprintf("%d records", n)
	}
	return "1 record"
}

// ask sends a query from the source, and again after half the time, and says whether the server answers.
func (w *walker) ask(source *end, to netip.AddrPort) error {
	query, err := dnsQuery(w.DNS, to.Addr().Is6())
	if err != nil {
		return err
	}
	conn, err := packets.DialUDP(w.ctx, source.ns(), to)
	if err != nil {
		if w.found.Stopped != "" {
			return nil // for the same reason
		}
		return err
	}
	defer func() { _ = conn.Close() }() // nothing is left to send
	var answer [dnsMaxMessage]byte
	text := ""
	for range 2 {
		_, err = conn.Write(query)
		_ = conn.SetReadDeadline(time.Now().Add(probePatience / 2)) // a socket has one
		for err == nil && text == "" {
			var n int
			n, err = conn.Read(answer[:])
			text = dnsText(answer[:max(n, 0)])
		}
		if text != "" || errors.Is(err, unix.ECONNREFUSED) {
			break
		}
	}
	switch {
	case text != "":
		w.step(source.name, "dns", "%s answers for %s: %s", to, w.DNS, text)
		if w.found.Stopped != "" && !w.isTracked { // the query has another port
			w.step(view.HostName, "answered", "although: %s", w.found.Stopped)
			w.stop("", "")
		}
	case w.found.Stopped != "":
	case errors.Is(err, unix.ECONNREFUSED):
		w.stop("", "no name server listens at %s", to)
	case errors.Is(err, unix.EPERM):
		w.stop("", "a rule in %s drops its queries: nsenter into it and list the rules", source.name)
	default:
		w.stop("", "the name server %s does not answer to %s, and no rule on the way is known to drop its packets", to, source.name)
	}
	return nil
}

const resolvConf = "etc/resolv.conf"

// nameServer returns the first server in the resolv.conf that the processes of an end read. A container without a process is taken to have
// that of the host, from which runtimes copy it.
func (w *walker) nameServer(of *end) (string, error) {
	roots := []string{"/"}
	if of.in != nil {
		all, err := processesIn(of.ns())
		if err != nil {
			return "", err
		}
		roots = append(all, roots...)
	}
	var conf []byte
	var err error
	for _, root := range roots { // the process of a sandbox can have none
		if conf, err = readResolvConf(root); err == nil {
			break
		}
	}
	if err != nil {
		return "", fmt.Errorf("%s of %s: %w", resolvConf, of.name, err)
	}
	for line := range strings.Lines(string(conf)) {
		words := strings.Fields(line)
		if len(words) < 2 || words[0] != "nameserver" {
			continue
		}
		if a, err := netip.ParseAddr(words[1]); err == nil {
			w.step(of.name, "dns", "/%s there names %s", resolvConf, a)
			return a.String(), nil
		}
	}
	return "", advice.With(fmt.Errorf("%s of %s names no server", resolvConf, of.name), "cnibox path --dns "+w.DNS+" "+of.name+" SERVER")
}

// readResolvConf reads the file below a root, which a container can replace by a link out of it, or by a FIFO.
func readResolvConf(root string) ([]byte, error) {
	dir, err := os.OpenRoot(root)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	const most = 1 << 20
	return smallfile.ReadIn(dir, resolvConf, most)
}

// processesIn returns the root directories of the processes in a namespace.
func processesIn(ns *netops.Namespace) (roots []string, err error) {
	own := ""
	err = ns.Run(func() (err error) {
		own, err = os.Readlink("/proc/thread-self/ns/net")
		return err
	})
	if err != nil {
		return nil, err
	}
	dirs, err := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		if of, _ := os.Readlink(dir + "/ns/net"); of == own {
			roots = append(roots, dir+"/root")
		}
	}
	return roots, err
}
