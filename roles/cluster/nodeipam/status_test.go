package nodeipam

import (
	"errors"
	"log/slog"
	"testing"
)

// TestStatus: the answer on the socket has the Lease's error, then the part of the cloud or of the leader.
func TestStatus(t *testing.T) {
	d := &daemon{log: slog.New(slog.DiscardHandler), lease: "kube-system/nodeipam", identity: "a"}
	d.seen("b", errors.New("no answer"))
	if s := d.status(); s.Lease != "kube-system/nodeipam" || s.Identity != "a" || s.Holder != "b" || s.Error != "no answer" || s.Leader || s.Synced || s.Nodes != 0 {
		t.Errorf("without the Lease: %+v", s)
	}
	d.seen("b", nil)
	if s := d.status(); s.Error != "" || s.Leader || s.Faults == nil || s.Networks == nil {
		t.Errorf("while another replica leads: %+v", s)
	}
	c := newController(nil, d.log, nil, newTable(nil, nil), &networks{})
	d.leading.Store(c)
	if s := d.status(); !s.Leader || s.Synced || s.Error != "" {
		t.Errorf("at the begin of a term: %+v", s)
	}
	c.synced(nodesPath)
	c.errs[nodesPath] = errors.New("no Nodes")
	if s := d.status(); !s.Synced || s.Error != "no Nodes" {
		t.Errorf("in a term: %+v", s)
	}
	d.leading.Store(nil)
	d.cloud = &cloudNode{name: "node-1", err: errors.New("no prefix")}
	if s := d.status(); s.Node != "node-1" || s.Error != "no prefix" || s.Nodes != 1 || s.Waiting != 1 {
		t.Errorf("of a cloud: %+v", s)
	}
}
