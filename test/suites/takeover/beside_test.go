package takeover

import "testing"

// TestBeside: on a node that was just taken over, cnibox attaches containers beside those of the reference. They get other
// addresses, and detaching one changes nothing of the others.
func TestBeside(t *testing.T) {
	for name, list := range chains() {
		for _, foreignFirst := range []bool{true, false} {
			t.Run(name+map[bool]string{true: ", theirs goes first", false: ", ours goes first"}[foreignFirst], func(t *testing.T) {
				n := newNode(t, known(list)...)
				n.list[0]["ipam"] = n.hostLocal("bridge")
				prepare(t, n)
				before := n.state()
				a, b := n.container(gone), n.container(stays)
				b.port = 8090
				a.add(theirs)
				b.add(ours)
				if address(t, a.result) == address(t, b.result) {
					t.Fatalf("%s was given twice", address(t, a.result))
				}
				first, second := b, a
				if foreignFirst {
					first, second = a, b
				}
				first.check(ours)
				second.check(ours)
				first.del(ours, first.ns.Path())
				second.check(ours)
				if !foreignFirst {
					second.check(theirs)
				}
				second.del(ours, second.ns.Path())
				b.gc()
				if before, now := withoutFilter(before), withoutFilter(n.state()); now != before {
					t.Errorf("at the end:\n%s", difference(before, now))
				}
			})
		}
	}
}
