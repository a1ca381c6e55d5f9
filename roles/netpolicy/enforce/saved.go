package enforce

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"

	"github.com/cnibox/cnibox/internal/coldjson"
	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/netops"
	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/netpolicy/choice"
	"github.com/cnibox/cnibox/store"
)

// savedSchema is the format of the saved policies.
const savedSchema = 1

// saved is the file of the saved policies. Without the sum, {} would be policies that select no pod.
type saved struct {
	Schema int `json:"schema"`
	// Sum is that of Policies (CRC-32).
	Sum      uint32          `json:"sum"`
	Policies json.RawMessage `json:"policies"`
}

// WriteSaved replaces the saved policies, and returns what identifies the file, or nil if another program has changed it since.
func WriteSaved(s *store.Store, policies *choice.Saved) (is fs.FileInfo, err error) {
	raw, err := json.Marshal(policies)
	var file []byte
	if err == nil { // not Marshal, which would read all policies again
		file = append(fmt.Appendf(nil, `{"schema":%d,"sum":%d,"policies":`, savedSchema, crc32.ChecksumIEEE(raw)), raw...)
		file = append(file, '}')
		err = smallfile.Replace(SavedPath(s), file, 0o600)
	}
	if err != nil {
		return nil, fmt.Errorf("save network policies: %w", err)
	}
	is, err = os.Lstat(SavedPath(s))
	if err != nil || is.Size() != int64(len(file)) {
		return nil, nil //nolint:nilerr // it was written
	}
	return is, nil
}

// errNeverRead means that an agent has begun to enforce policies, and has not read them yet.
var errNeverRead = errors.New("the agent of this node has not read the network policies yet")

// errSaved means that the saved policies are not as the agent wrote them.
var errSaved = errors.New("the saved network policies are damaged")

// ReadSaved reads the saved policies.
func ReadSaved(s *store.Store) (*choice.Saved, error) {
	path := SavedPath(s)
	content, err := smallfile.ReadOwn(path, maxSaved)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("this node enforces network policies, and the saved ones were deleted: %w", err)
	case err != nil:
		return nil, fmt.Errorf("read the saved network policies: %w", err)
	case len(content) == 0:
		return nil, errNeverRead
	}
	var file saved
	if err := coldjson.Unmarshal(content, &file); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", errSaved, path, err)
	}
	if file.Schema != savedSchema || file.Sum != crc32.ChecksumIEEE(file.Policies) {
		return nil, fmt.Errorf("%w: %s: its content is not what an agent of this version wrote", errSaved, path)
	}
	policies := new(choice.Saved)
	if err := coldjson.Unmarshal(file.Policies, policies); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", errSaved, path, err)
	}
	return policies, nil
}

// choose chooses by the saved policies. asked is why the agent did not.
func choose(s *store.Store, p *netops.PodPolicy, asked error) (a Answer, err error) {
	policies, err := ReadSaved(s)
	if err != nil {
		return a, fmt.Errorf("%w: %w, and it does not answer: %w: 'cnibox agent' must run with -policy and reach its source, or end the enforcement with 'cnibox policy off'",
			roles.ErrTryAgain, err, asked)
	}
	a.Egress, a.Ingress = policies.Choose(p.Namespace, p.Name, p.UID, p.Network, p.Labels)
	return a, nil
}

// Marked reports whether the node enforces network policies: whether its state says so, or there are saved policies.
func Marked(ctx context.Context, s *store.Store) (bool, error) {
	if _, err := os.Lstat(SavedPath(s)); err == nil {
		return true, nil
	}
	on, err := store.Read(ctx, s, func(tx *store.Tx) (bool, error) { return tx.Enforces(), nil })
	if err != nil || on {
		return on, err
	}
	e, err := store.ReadKeep(ctx, s, (*store.KeepTx).Enforcing)
	return e != nil, err
}
