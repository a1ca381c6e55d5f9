package dispatch

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/cnibox/cnibox/roles"
)

// What takes more of the program than there is says nothing: the whole program is to
// begin anew. There it would be an error as others are.
func TestUnfinished(t *testing.T) {
	lacking := func(context.Context, *roles.Host, *roles.Request) error {
		return fmt.Errorf("%w: %w", roles.ErrNotAvailable, fmt.Errorf("the cloud: %w", roles.ErrPartial))
	}
	a := &actor{name: "one", status: lacking, add: func(ctx context.Context, h *roles.Host, req *roles.Request) (*roles.Result, error) {
		return nil, lacking(ctx, h, req)
	}}
	for _, verb := range []string{"ADD", "STATUS"} {
		w := newWorld(a).set("CNI_COMMAND", verb)
		var stdout, stderr bytes.Buffer
		p := w.process(&stdout, &stderr)
		p.Partial = true
		a.calls = nil
		if got := Main(t.Context(), p); got != Unfinished || stdout.Len()+stderr.Len() > 0 || len(a.calls) != 1 {
			t.Errorf("%s: %d, said %q and %q, calls %q", verb, got, &stdout, &stderr, a.calls)
		}
		if o := w.call(t).failure(t); o.Code != 50 {
			t.Errorf("%s of the whole program: code %d", verb, o.Code)
		}
	}
}
