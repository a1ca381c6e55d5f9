package nft

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRule: the parts of a rule stand in their order, behind the check of the family that one of them needs, and a key begins in the first register.
func TestRule(t *testing.T) {
	set := &Set{Name: "s"}
	r := NewRule(Tracked(unix.NFT_CT_STATE, 1), InputLink(), Source4(), NotIn(set), TransportPort(), Among([]byte{0, 1}, []byte{0, 9}), TransportPort(), Is([]byte{0, 7}),
		Comment("why"), Goto("c"))
	m := r.Message(Table{Family: unix.NFPROTO_INET, Name: "t"}, "from")
	have, err := DecodeRule(Table{}, m.Body[4:]) // behind struct nfgenmsg
	if err != nil {
		t.Fatal(err)
	}
	if have.Chain != "from" || have.Comment != "why" || r.Comment() != "why" || have.Verdict != "goto c" {
		t.Errorf("chain %q, comment %q and %q, verdict %q", have.Chain, have.Comment, r.Comment(), have.Verdict)
	}
	var names []string
	var registers []uint32
	for _, e := range have.Expressions {
		names = append(names, e.Name)
		if kind, loads := map[string]uint16{"meta": unix.NFTA_META_DREG, "ct": unix.NFTA_CT_DREG, "payload": unix.NFTA_PAYLOAD_DREG}[e.Name]; loads {
			register, _ := e.Number(kind)
			registers = append(registers, register-FirstRegister)
		}
	}
	if want := []string{"meta", "cmp", "ct", "bitwise", "cmp", "meta", "payload", "lookup", "payload", "cmp", "cmp", "payload", "cmp", "immediate"}; !slices.Equal(names, want) {
		t.Errorf("%q, want %q", names, want)
	}
	if want := []uint32{0, 0, 0, 4, 0, 0}; !slices.Equal(registers, want) {
		t.Errorf("fields are loaded into %d, want %d", registers, want)
	}
}

// TestVerdictOf: what is no verdict makes no rule.
func TestVerdictOf(t *testing.T) {
	for text, valid := range map[string]bool{"accept": true, "drop": true, "return": true, "jump x": true, "goto x": true, "jump": false, "accept x": false, "": false, "goto a b": false} {
		part, err := VerdictOf(text)
		if (err == nil) != valid || (part != nil) != valid {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if valid {
			have, err := DecodeRule(Table{}, NewRule(part).Message(Table{}, "c").Body[4:])
			if err != nil || have.Verdict != text {
				t.Errorf("%q is encoded as %q, %v", text, have.Verdict, err)
			}
		}
	}
}
