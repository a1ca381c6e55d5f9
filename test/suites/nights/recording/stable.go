package recording

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Stable returns the recording with values in place of those that each node has of its own: times, identifiers of processes, programs and
// namespaces, random MACs, and the directory of the test. The order of times is kept.
func (r *Recording) Stable(dir string) (*Recording, error) {
	raw, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	text := strings.NewReplacer(append(macs(string(raw)), dir, "/work")...).Replace(string(raw))
	for _, volatile := range [][2]string{
		{`"(inode|mount|dirInode|dirDev|dev)":\d+`, `"$1":1`},
		{`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`, "00000000-0000-0000-0000-000000000000"},
		{`\d+ s in the plugin`, "9 s in the plugin"},
		{`(pid|kill|process|XDP program) \d+`, "$1 9"},
		{`"PID":\d+`, `"PID":9`},
		{`(nf_conntrack_count":\{"value":")\d\d?"`, `${1}1"`},
	} {
		text = regexp.MustCompile(volatile[0]).ReplaceAllString(text, volatile[1])
	}
	stable := new(Recording)
	err = json.Unmarshal([]byte(withoutTimes(text)), stable)
	return stable, errors.Join(err, stable.sort("tracked UDP"), stable.sort("labelled rules"))
}

// sort sorts the list that answers a question, or the objects of a specification, which the kernel has in no order.
func (r *Recording) sort(question string) error {
	one, is := r.Records[question]
	if !is || len(one.Value) == 0 {
		return nil
	}
	var spec struct {
		Objects []json.RawMessage `json:"objects"`
	}
	var list []json.RawMessage
	into, all := any(&list), &list
	if one.Value[0] == '{' {
		into, all = &spec, &spec.Objects
	}
	if err := json.Unmarshal(one.Value, into); err != nil {
		return fmt.Errorf("%s: %w", question, err)
	}
	slices.SortFunc(*all, func(a, b json.RawMessage) int { return bytes.Compare(a, b) })
	value, err := json.Marshal(into)
	one.Value = value
	r.Records[question] = one
	return err
}

// macs returns the MACs of a text that no night has given, and the link-local addresses that the kernel makes of them, each with what stands
// for it, by their order.
func macs(text string) (pairs []string) {
	for _, one := range regexp.MustCompile(`\b([0-9a-f]{2}:){5}[0-9a-f]{2}\b`).FindAllString(text, -1) {
		mac, err := net.ParseMAC(one)
		const given = "02:00:00:"
		if err != nil || strings.HasPrefix(one, given) || strings.Trim(one, "f0:") == "" || slices.Contains(pairs, one) {
			continue
		}
		stable := net.HardwareAddr{2, 0, 1, 0, 0, byte(len(pairs) / 4)}
		pairs = append(pairs, one, stable.String(), linkLocal(mac), linkLocal(stable))
	}
	return pairs
}

// linkLocal returns the link-local address of a MAC (RFC 4291, appendix A).
func linkLocal(m net.HardwareAddr) string {
	return netip.AddrFrom16([16]byte{0xfe, 0x80, 8: m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]}).String()
}

// withoutTimes replaces the times of a text by seconds of one minute in their order.
func withoutTimes(text string) string {
	form := regexp.MustCompile(`20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`)
	all := form.FindAllString(text, -1)
	slices.SortFunc(all, func(a, b string) int {
		at, _ := time.Parse(time.RFC3339Nano, a)
		bt, _ := time.Parse(time.RFC3339Nano, b)
		return cmp.Or(at.Compare(bt), strings.Compare(a, b))
	})
	all = slices.Compact(all)
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	return form.ReplaceAllStringFunc(text, func(one string) string {
		return start.Add(time.Duration(slices.Index(all, one)) * time.Second).Format(time.RFC3339)
	})
}

// Differences returns how a recording differs from another one of the same night: in what is printed, and in the questions.
func (r *Recording) Differences(other *Recording) (all []string) {
	for i, c := range r.Commands {
		if i >= len(other.Commands) || c.Line != other.Commands[i].Line {
			return []string{"the commands are others: " + c.Line}
		}
		if have := other.Commands[i].Prints; !slices.Equal(c.Prints, have) {
			all = append(all, fmt.Sprintf("%s prints\n%s\ninstead of\n%s", c.Line, strings.Join(have, "\n"), strings.Join(c.Prints, "\n")))
		}
	}
	if len(other.Commands) > len(r.Commands) {
		all = append(all, "the commands are others: "+other.Commands[len(r.Commands)].Line)
	}
	for question := range other.Records {
		if _, is := r.Records[question]; !is {
			all = append(all, "not in the recording: "+question)
		}
	}
	for question := range r.Records {
		if _, is := other.Records[question]; !is {
			all = append(all, "not asked any more: "+question)
		}
	}
	return all
}
