package egress

import (
	"testing"

	"github.com/cnibox/cnibox/netops/netopstest"
)

func TestMain(m *testing.M) { netopstest.Main(m) }
