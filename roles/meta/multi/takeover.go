package multi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cnibox/cnibox/internal/sorting"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/recovery"
	"github.com/cnibox/cnibox/roles/call/result"
	"github.com/cnibox/cnibox/store"
)

// Multus keeps libcni's cache of each network that it delegated to below cniDir/results, and its list
// of a container's networks in the file cniDir/CONTAINER-ID.

const multusResults = "results"

// multus is a container that Multus attached.
type multus struct {
	request *store.Delegation
	out     *store.Delegated
	// files are below cniDir.
	files []string
}

// multusRecords returns loadRecords' records, or if there are none those that Multus's cache
// describes. In that case took is not nil.
func (m *handler) multusRecords(ctx context.Context, h *roles.Host, req *roles.Request) (request *store.Delegation, out *store.Delegated, took *multus, err error) {
	request, out, err = loadRecords(ctx, h, req.Key())
	if err != nil || request != nil {
		return request, out, nil, err
	}
	took = m.readMultus(h, req)
	if took == nil {
		return nil, out, nil, nil
	}
	if out == nil { // else an earlier DEL failed
		out = took.out
	}
	return took.request, out, took, nil
}

// readMultus reads the networks of a container from Multus's cache. The default network is first,
// as at ADD. It returns nil if the cache does not have the container.
func (m *handler) readMultus(h *roles.Host, req *roles.Request) *multus {
	var found []*recovery.CacheEntry
	for _, e := range recovery.ReadCaches(h, []string{filepath.Join(m.conf.CNIDir, multusResults)}) {
		if e.ContainerID == req.ContainerID {
			found = append(found, e)
		}
	}
	if len(found) == 0 {
		return nil
	}
	later := func(e *recovery.CacheEntry) int {
		if e.IfName == req.IfName {
			return 0
		}
		return 1
	}
	sorting.Func(found, func(a, b *recovery.CacheEntry) int {
		return cmp.Or(later(a)-later(b), cmp.Compare(len(a.IfName), len(b.IfName)), cmp.Compare(a.IfName, b.IfName)) // net2 before net10
	})
	t := &multus{
		request: &store.Delegation{Owner: req.Key(), Args: req.Args.String()},
		out:     &store.Delegated{Owner: req.Key(), State: store.Done},
		files:   []string{req.ContainerID},
	}
	for _, e := range found {
		t.request.Delegates = append(t.request.Delegates, store.Delegate{
			IfName: e.IfName, Name: e.Network, List: e.Config, Version: m.conf.CNIVersion, Runtime: e.CapabilityArgs,
		})
		t.files = append(t.files, filepath.Join(multusResults, e.Network+"-"+e.ContainerID+"-"+e.IfName))
		if raw := multusResult(h, e); raw != nil {
			t.out.Done = append(t.out.Done, store.Answer{IfName: e.IfName, Result: raw})
		}
	}
	return t
}

// multusResult returns a cached result in the form of a record, or nil.
func multusResult(h *roles.Host, e *recovery.CacheEntry) []byte {
	if len(e.Result) == 0 {
		return nil
	}
	r, err := result.Decode("0.1.0", e.Result)
	if err == nil {
		var raw []byte
		if raw, err = result.Encode(r, roles.ResultVersion); err == nil {
			return raw
		}
	}
	h.Log.Warn("Multus's cached result is ignored", "network", e.Network, "ifname", e.IfName, "error", err)
	return nil
}

// forget deletes the files of a detached container.
func (t *multus) forget(dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("remove Multus's cache: %w", err)
	}
	defer root.Close()
	var errs []error
	for _, f := range t.files {
		if err := root.Remove(f); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
