package sticky

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	"github.com/cnibox/cnibox/roles"
)

// AnnotationsCapability is the capability with which containerd and CRI-O pass a
// pod's annotations, in runtimeConfig under the same name.
const AnnotationsCapability = "io.kubernetes.cri.pod-annotations"

// DefaultAnnotation is the annotation with which a pod requests addresses. With "."
// and a network's name appended, it applies to that network only.
const DefaultAnnotation = "cnibox.io/ips"

// maxAnnotation bounds the length of an annotation. Kubernetes allows 256 kB for all
// annotations of a pod.
const maxAnnotation = 4096

// Requested reads the addresses that a pod requests: separated by commas, or as a
// JSON list of texts. It returns their JSON path for later errors.
func Requested(f *roles.Faults, annotations map[string]string, key, network string) (path string, addrs []netip.Addr) {
	at := key + "." + network
	value, ok := annotations[at]
	if !ok {
		at = key
		value = annotations[at]
	}
	path = fmt.Sprintf("runtimeConfig[%q][%.80q]", AnnotationsCapability, at)
	value = strings.TrimSpace(value)
	if value == "" {
		return path, nil
	}
	if len(value) > maxAnnotation {
		f.Addf(path, "is longer than %d bytes", maxAnnotation)
		return path, nil
	}
	texts := strings.Split(value, ",")
	if value[0] == '[' {
		texts = nil
		if err := json.Unmarshal([]byte(value), &texts); err != nil {
			f.Addf(path, "is not a JSON list of texts: %v", roles.Mismatch(err))
			return path, nil
		}
	}
	for _, t := range texts {
		a, err := roles.ParseAddrOrCIDR(strings.TrimSpace(t))
		if f.Check(path, err) {
			addrs = append(addrs, a)
		}
	}
	return path, addrs
}
