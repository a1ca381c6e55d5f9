package overlay

import (
	"errors"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nft"
	"github.com/cnibox/cnibox/netops/internal/nstest"
)

// TestOwnedTable shows why the agent does not own its table (flags owner and
// persist, Linux 6.9): while it runs, other programs could not restore a saved
// ruleset, because that has the table too, and the kernel refuses the whole file.
// The agent makes the table again within 20 ms after a flush.
func TestOwnedTable(t *testing.T) {
	const ownerAndPersist = 2 | 4 // NFT_TABLE_F_OWNER, NFT_TABLE_F_PERSIST of linux/netfilter/nf_tables.h
	nstest.Fresh(t)
	conn := nft.New(nil, nil)
	defer conn.Close()
	owned := ownTable().Message(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE)
	owned.Net32(unix.NFTA_TABLE_FLAGS, ownerAndPersist)
	err := conn.Commit(t.Context(), 0, owned)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
		t.Logf("this kernel has no such flags: %v", err)
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	restore := exec.Command("nft", "-f", "-")
	restore.Stdin = strings.NewReader("table inet other {\n}\n" + nstest.Run(t, "nft", "list", "ruleset"))
	out, err := restore.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "not permitted") {
		t.Errorf("restore: %v\n%s", err, out)
	}
	if have := nstest.Run(t, "nft", "list", "ruleset"); strings.Contains(have, "other") {
		t.Errorf("another program's table was restored:\n%s", have)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	nstest.Run(t, "nft", "delete", "table", "inet", "cnibox_overlay")
}
