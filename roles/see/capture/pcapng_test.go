package capture

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cnibox/cnibox/netops/packets"
)

// block is a block of a file: its type and its content without sizes.
type block struct {
	kind uint32
	body []byte
}

// blocks reads a pcapng file.
func blocks(t testing.TB, b []byte) (all []block) {
	t.Helper()
	for len(b) > 0 {
		if len(b) < 12 {
			t.Fatalf("%d bytes at the end", len(b))
		}
		size := binary.LittleEndian.Uint32(b[4:])
		if size%4 != 0 || int(size) > len(b) || binary.LittleEndian.Uint32(b[size-4:]) != size {
			t.Fatalf("a block of %d bytes", size)
		}
		all = append(all, block{binary.LittleEndian.Uint32(b), b[8 : size-4]})
		b = b[size:]
	}
	return all
}

// options reads the options at the end of a block.
func options(t testing.TB, b []byte) map[uint16]string {
	t.Helper()
	all := map[uint16]string{}
	for {
		code, size := binary.LittleEndian.Uint16(b), int(binary.LittleEndian.Uint16(b[2:]))
		if code == 0 {
			if len(b) != 4 {
				t.Errorf("%d bytes after the options", len(b)-4)
			}
			return all
		}
		all[code] = string(b[4 : 4+size])
		b = b[4+(size+3)&^3:]
	}
}

// TestWriter reads a file by a reader of its own.
func TestWriter(t *testing.T) {
	var file bytes.Buffer
	w, err := NewWriter(&file, "cnibox v1", "pod default/web")
	if err != nil {
		t.Fatal(err)
	}
	at := time.Unix(1_700_000_000, 123_456_789)
	err = errors.Join(
		w.Interface(Interface{Name: "eth0", Description: "default/web", Filter: "tcp", Snaplen: 99}),
		w.Interface(Interface{Name: "veth1", Description: strings.Repeat("x", 1<<17), Snaplen: 99}),
		w.Packet(1, &packets.Packet{Time: at, Data: []byte("abcde"), Size: 1500, Outgoing: true}),
		w.Packet(0, &packets.Packet{Time: at.Add(1), Data: []byte("abcd"), Size: 4}),
		w.Statistics(1, at, at.Add(time.Second), 7, 3),
		w.Flush(),
	)
	if err != nil {
		t.Fatal(err)
	}
	b := blocks(t, file.Bytes())
	kinds := []uint32{}
	for _, one := range b {
		kinds = append(kinds, one.kind)
	}
	if !slices.Equal(kinds, []uint32{sectionBlock, interfaceBlock, interfaceBlock, packetBlock, packetBlock, statisticsBlock}) {
		t.Fatalf("blocks %x", kinds)
	}
	if o := options(t, b[0].body[16:]); o[optionComment] != "pod default/web" || o[sectionApplication] != "cnibox v1" {
		t.Errorf("section %v", o)
	}
	if o := options(t, b[1].body[8:]); o[interfaceName] != "eth0" || o[interfaceDescription] != "default/web" || o[interfaceFilter] != "\x00tcp" || o[interfaceResolution] != "\x09" {
		t.Errorf("interface %v", o)
	}
	if o := options(t, b[2].body[8:]); len(o) != 3 || len(o[interfaceDescription]) != maxOption {
		t.Errorf("second interface with %d options, description of %d bytes", len(o), len(o[interfaceDescription]))
	}
	u := func(i int) uint32 { return binary.LittleEndian.Uint32(b[3].body[4*i:]) }
	if ns := int64(u(1))<<32 | int64(u(2)); u(0) != 1 || ns != at.UnixNano() || u(3) != 5 || u(4) != 1500 || string(b[3].body[20:28]) != "abcde\x00\x00\x00" {
		t.Errorf("packet %x", b[3].body)
	}
	if o := options(t, b[3].body[28:]); o[packetFlags] != "\x02\x00\x00\x00" {
		t.Errorf("packet's options %v", o)
	}
	if o := options(t, b[5].body[12:]); o[statisticsReceived] != "\x07\x00\x00\x00\x00\x00\x00\x00" || o[statisticsDropped][0] != 3 || len(o) != 4 {
		t.Errorf("statistics %v", o)
	}
}
