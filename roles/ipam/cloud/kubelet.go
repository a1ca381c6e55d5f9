package cloud

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/big"

	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/internal/yaml"
)

const (
	maxKubeletConfig = 1 << 20
	// defaultMaxPods is kubelet's default (KubeletConfiguration v1beta1, maxPods).
	defaultMaxPods = 110
)

// ShownKubelet has the number of pods that kubelet starts on this node. kubelet does not consider
// the number of addresses.
type ShownKubelet struct {
	MaxPods int `json:"maxPods"`
	// Fault is the reason why MaxPods is unknown.
	Fault string `json:"fault,omitempty"`
}

// readKubelet reads kubelet's configuration. It returns nil if the file does not exist.
func readKubelet(path string) *ShownKubelet {
	b, err := smallfile.Read(path, maxKubeletConfig)
	if errors.Is(err, fs.ErrNotExist) || path == "" {
		return nil
	}
	if err == nil {
		b, err = yaml.ToJSON(b)
	}
	var c struct {
		MaxPods *int `json:"maxPods"`
	}
	if err == nil {
		err = json.Unmarshal(b, &c)
	}
	switch {
	case err != nil:
		return &ShownKubelet{Fault: fmt.Sprintf("read maxPods of %q: %v", path, err)}
	case c.MaxPods == nil || *c.MaxPods <= 0:
		return &ShownKubelet{MaxPods: defaultMaxPods}
	}
	return &ShownKubelet{MaxPods: *c.MaxPods}
}

// text compares maxPods with the number of addresses.
func (k *ShownKubelet) text(s *Shown) string {
	if k.Fault != "" {
		return k.Fault
	}
	size := new(big.Int)
	for _, src := range s.Sources {
		size.Add(size, src.size)
	}
	line := fmt.Sprintf("kubelet's maxPods is %d, and there are %s addresses", k.MaxPods, size)
	if size.Cmp(big.NewInt(int64(k.MaxPods))) < 0 {
		line += fmt.Sprintf(": pods beyond them stay in ContainerCreating; set maxPods to %s (pods on the host's network need no address), or give the node more", size)
	}
	return line
}
