package attach_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attach"
)

// TestUpperWithoutContainer: without the container, a master in it is the one that the configuration names. The default has no answer then.
func TestUpperWithoutContainer(t *testing.T) {
	in := &attach.Input{}
	if err := (&attach.Upper{Kind: "vlan", Master: "net1", InContainer: true}).Observe(t.Context(), nil, in, nil); err != nil || in.Observed != (attach.MasterLink{Name: "net1"}) {
		t.Errorf("%+v, %v", in.Observed, err)
	}
	in = &attach.Input{}
	err := (&attach.Upper{Kind: "vlan", InContainer: true}).Observe(t.Context(), nil, in, nil)
	if conf := (*roles.ConfError)(nil); !errors.As(err, &conf) || conf.Path != "master" || !strings.Contains(conf.Reason, "set master or CNI_NETNS") {
		t.Errorf("%+v, %v", in.Observed, err)
	}
}
