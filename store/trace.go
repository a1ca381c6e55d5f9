package store

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/cnibox/cnibox/internal/coldjson"
)

// The files trace and history, beside node.db, have one JSON object a line. They are not buckets of node.db:
// a call is traced after its last transaction, and a further one would take five times as long. They also
// outlive a damaged node.db.
const (
	traceName   = "trace"
	historyName = "history"
	// DefaultTrace is the number of calls in the trace.
	DefaultTrace = 1000
	// historySize is the size at which the file is replaced; the one before it is kept. An end takes 400 bytes.
	historySize = 1 << 20
	// maxTrace bounds what is read of one file.
	maxTrace = 64 << 20
)

// TracedCall is one call in the trace. Secrets are redacted before it is stored.
type TracedCall struct {
	Time time.Time `json:"time"`
	// Caller is the name of the process that executed the plugin, or "cnibox" for a call of the command line.
	Caller string `json:"caller,omitempty"`
	Role   string `json:"role"`
	Verb   string `json:"verb"`
	// Network is empty if the configuration cannot be decoded.
	Network     string `json:"network,omitempty"`
	ContainerID string `json:"containerID,omitempty"`
	IfName      string `json:"ifname,omitempty"`
	Netns       string `json:"netns,omitempty"`
	// Args are CNI_ARGS, and Path is CNI_PATH.
	Args string `json:"args,omitempty"`
	Path string `json:"path,omitempty"`
	Pod  string `json:"pod,omitempty"`
	// TraceParent is TRACEPARENT, if it is valid.
	TraceParent string `json:"traceparent,omitempty"`
	// Stdin and Result are texts and not JSON, because each may be cut or may not be JSON.
	Stdin  string `json:"stdin,omitempty"`
	Result string `json:"result,omitempty"`
	// Cut means that Stdin or Result is not complete.
	Cut bool `json:"cut,omitempty"`
	// Code is that of the CNI error, 0 for success.
	Code    uint   `json:"code,omitempty"`
	Error   string `json:"error,omitempty"`
	Details string `json:"details,omitempty"`
	// Took is the duration of the call, and Steps are parts of it.
	Took  time.Duration `json:"tookNs"`
	Steps Steps         `json:"stepsNs"`
	// Program is the version of the binary.
	Program string `json:"program,omitempty"`
}

// Fault is the error with its code, or "" for success.
func (c *TracedCall) Fault() string {
	if c.Code == 0 {
		return ""
	}
	return fmt.Sprintf("error %d: %s", c.Code, strings.Join(append([]string{c.Error}, strings.Fields(c.Details)...), " "))
}

// Key returns the key of the call's attachment.
func (c *TracedCall) Key() Key {
	return Key{Network: c.Network, ContainerID: c.ContainerID, IfName: c.IfName}
}

// Steps are durations of parts of a call. IPAM contains the Lock, Netlink and Nftables of that time.
type Steps struct {
	// Lock is the time that the call waited for other calls.
	Lock time.Duration `json:"lock,omitempty"`
	// IPAM is the time in IPAM plugins, and Delegate the time in other executed plugins.
	IPAM     time.Duration `json:"ipam,omitempty"`
	Netlink  time.Duration `json:"netlink,omitempty"`
	Nftables time.Duration `json:"nftables,omitempty"`
	Delegate time.Duration `json:"delegate,omitempty"`
}

// Trace appends a call to the trace, which keeps at least limit bytes of calls, and at most twice as many. It
// creates the directory of this boot only for ADD; without a directory it does nothing.
func (s *Store) Trace(c *TracedCall, limit int64) error {
	return s.appendLine(c.Verb == "ADD", traceName, c, limit)
}

// Traced returns the calls of this boot, oldest first, and the number of damaged lines.
func (s *Store) Traced() (calls []*TracedCall, damaged int, err error) {
	return readLines[TracedCall](s, traceName)
}

// Holding says which addresses an attachment had, and when.
type Holding struct {
	Network     string         `json:"network"`
	ContainerID string         `json:"containerID"`
	IfName      string         `json:"ifname"`
	Pod         string         `json:"pod,omitempty"`
	Addresses   []netip.Prefix `json:"addresses,omitempty"`
	MAC         string         `json:"mac,omitempty"`
	HostLink    string         `json:"hostLink,omitempty"`
	Since       time.Time      `json:"since"`
	// Until is zero while the attachment exists.
	Until time.Time `json:"until,omitzero"`
	// Traced means that a third-party plugin made the interface, and that only the trace has its addresses. It is not stored.
	Traced bool `json:"traced,omitempty"`
}

// Holding returns what the attachment has now.
func (a *Attachment) Holding() *Holding {
	return &Holding{
		Network: a.Network, ContainerID: a.ContainerID, IfName: a.IfName, Pod: a.Pod,
		Addresses: a.Addresses, MAC: a.MAC, HostLink: a.HostLink, Since: a.Created,
	}
}

// Ended returns the attachments of this boot that were removed, in the order of their ends, and the number of
// damaged lines.
func (s *Store) Ended() (ended []*Holding, damaged int, err error) {
	return readLines[Holding](s, historyName)
}

// remember adds removed attachments to the history. An error is not returned, because the attachments were
// removed, and nothing but the history lacks them.
func (s *Store) remember(ended []*Holding) {
	for _, h := range ended {
		_ = s.appendLine(false, historyName, h, historySize)
	}
}

func (s *Store) appendLine(create bool, name string, v any, limit int64) error {
	line, err := coldjson.Marshal(v)
	if err != nil {
		return err
	}
	return ignoreAbsent(s.run.Append(create, name, append(line, '\n'), limit))
}

// readLines decodes a file of appendLine.
func readLines[T any](s *Store, name string) (all []*T, damaged int, err error) {
	lines, err := s.run.Lines(name, maxTrace)
	for _, line := range lines {
		one := new(T)
		if !bytes.HasPrefix(line, []byte("{")) || json.Unmarshal(line, one) != nil {
			damaged++
			continue
		}
		all = append(all, one)
	}
	return all, damaged, err
}
