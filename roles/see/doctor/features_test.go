package doctor

import (
	"encoding/json"
	"testing"

	"github.com/cnibox/cnibox/roles/see/view"
)

// TestBackendFeature: a node needs the kernel's feature of the backend that it uses.
func TestBackendFeature(t *testing.T) {
	host := func(links string) *view.Host {
		return view.Recorded(map[string]view.Record{"links": {Value: json.RawMessage(links)}})
	}
	for want, change := range map[string]func(f *Facts){
		"link-vxlan":     func(*Facts) {},
		"link-wireguard": func(f *Facts) { f.Overlay.Agent = &Agent{Backend: "wireguard"} },
		"":               func(f *Facts) { f.Overlay.Agent = &Agent{Backend: "host-gw"} },
	} {
		f := &Facts{Networks: []*Network{{Path: "net", Types: []string{"vxlan"}, Overlay: true}}, Host: host("[]")}
		change(f)
		have := f.features()
		if have[want] != "net" || want != "link-vxlan" && have["link-vxlan"] != "" {
			t.Errorf("want %q, have %v", want, have)
		}
	}
	f := &Facts{Networks: []*Network{{Path: "net", Types: []string{"flannel"}, Overlay: true}}, Host: host(`[{"Name": "flannel-wg", "Kind": "wireguard"}]`)}
	if have := f.features(); len(have) != 1 || have["link-wireguard"] == "" {
		t.Errorf("beside flanneld: %v", have)
	}
}
