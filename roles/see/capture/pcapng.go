// Package capture has what `cnibox capture` needs beside the kernel: the language of filters, and the file
// format pcapng.
package capture

import (
	"bufio"
	"encoding/binary"
	"io"
	"time"

	"github.com/cnibox/cnibox/netops/packets"
)

// Numbers of pcapng (draft-ietf-opsawg-pcapng).
const (
	sectionBlock    = 0x0a0d0d0a
	interfaceBlock  = 1
	statisticsBlock = 5
	packetBlock     = 6
	byteOrderMagic  = 0x1a2b3c4d
	version         = 1 // 1.0: the lower half is the major version
	linkEthernet    = 1

	optionComment                                = 1
	sectionApplication                           = 4
	interfaceName, interfaceDescription          = 2, 3
	interfaceResolution, interfaceFilter         = 9, 11
	packetFlags                                  = 2
	statisticsStart, statisticsEnd               = 2, 3
	statisticsReceived, statisticsDropped        = 4, 5
	flagInbound, flagOutbound             uint32 = 1, 2

	nanoseconds = "\x09" // the resolution as a negative power of 10
	maxOption   = 1<<16 - 4
)

// Writer writes packets of several interfaces in the format pcapng.
type Writer struct {
	w *bufio.Writer
	// block is the block that is being built.
	block []byte
}

// Interface is an interface of the file. Its index is the order in which it was added.
type Interface struct {
	Name, Description, Filter string
	Snaplen                   uint32
}

// NewWriter writes the beginning of a section.
func NewWriter(w io.Writer, application, comment string) (*Writer, error) {
	p := &Writer{w: bufio.NewWriterSize(w, 1<<20)}
	p.begin(sectionBlock, byteOrderMagic, version, ^uint32(0), ^uint32(0)) // the size of the section is not known
	p.text(optionComment, comment)
	p.text(sectionApplication, application)
	return p, p.end()
}

// Interface adds an interface. All are added before the first packet.
func (p *Writer) Interface(i Interface) error {
	p.begin(interfaceBlock, linkEthernet, i.Snaplen)
	p.text(interfaceName, i.Name)
	p.text(interfaceDescription, i.Description)
	if i.Filter != "" {
		p.text(interfaceFilter, "\x00"+i.Filter) // 0: in the language of pcap-filter
	}
	p.text(interfaceResolution, nanoseconds)
	return p.end()
}

// Packet adds a packet of an interface.
func (p *Writer) Packet(index int, packet *packets.Packet) error {
	high, low := halves(packet.Time)
	p.begin(packetBlock, uint32(index), high, low, uint32(len(packet.Data)), uint32(packet.Size))
	p.padded(packet.Data)
	flags := flagInbound
	if packet.Outgoing {
		flags = flagOutbound
	}
	p.option(packetFlags, flags)
	return p.end()
}

// Statistics adds the counters of an interface: the packets that the filter accepted, and how many of them
// are missing in the file.
func (p *Writer) Statistics(index int, from, to time.Time, received, dropped uint64) error {
	high, low := halves(to)
	p.begin(statisticsBlock, uint32(index), high, low)
	p.option(statisticsEnd, high, low)
	high, low = halves(from)
	p.option(statisticsStart, high, low)
	p.option(statisticsReceived, uint32(received), uint32(received>>32))
	p.option(statisticsDropped, uint32(dropped), uint32(dropped>>32))
	return p.end()
}

// Flush writes what is buffered.
func (p *Writer) Flush() error { return p.w.Flush() }

// halves returns the two words of a time.
func halves(t time.Time) (high, low uint32) {
	ns := uint64(t.UnixNano())
	return uint32(ns >> 32), uint32(ns)
}

// begin begins a block. Its size is set by end.
func (p *Writer) begin(words ...uint32) {
	p.block = p.block[:0]
	p.words(words[0], 0)
	p.words(words[1:]...)
}

func (p *Writer) words(words ...uint32) {
	for _, w := range words {
		p.block = binary.LittleEndian.AppendUint32(p.block, w)
	}
}

// padded appends bytes, and zeros to a multiple of 4.
func (p *Writer) padded(b []byte) {
	p.block = append(p.block, b...)
	p.block = append(p.block, make([]byte, -len(b)&3)...)
}

// option appends an option that has words.
func (p *Writer) option(code uint32, words ...uint32) {
	p.words(code | uint32(4*len(words))<<16)
	p.words(words...)
}

// text appends an option that has bytes.
func (p *Writer) text(code uint32, s string) {
	s = s[:min(len(s), maxOption)]
	p.words(code | uint32(len(s))<<16)
	p.padded([]byte(s))
}

// end ends the options, sets both sizes and writes the block.
func (p *Writer) end() error {
	size := uint32(len(p.block) + 8)
	p.words(0, size)
	binary.LittleEndian.PutUint32(p.block[4:], size)
	_, err := p.w.Write(p.block)
	return err
}
