package agent

import "testing"

// FuzzRemoval: no inotify event leads to a panic.
func FuzzRemoval(f *testing.F) {
	r := &removal{names: []string{"overlay.json"}}
	event := append([]byte{1, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0}, "overlay.json\x00\x00\x00\x00"...)
	if !r.isRelevant(event) || r.isRelevant(append(event[:16:16], "other.json\x00\x00\x00\x00\x00\x00"...)) {
		f.Error("names are not told apart")
	}
	f.Add(event)
	f.Fuzz(func(_ *testing.T, b []byte) { r.isRelevant(b) })
}
