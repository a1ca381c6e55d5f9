package grpc

import "bytes"

// readFields reads a list of header fields and keeps those of a call.
func (a *answer) readFields(b []byte) error {
	code := newHuffman()
	for len(b) > 0 {
		var name, value string
		var index int
		var ok bool
		switch first := b[0]; {
		case first&0x80 != 0: // a field of the static table
			index, b, ok = readNumber(b, 7)
			name, value, ok = static(index, ok && index > 0)
		case first&0x60 == 0x20: // the size of the dynamic table
			index, b, ok = readNumber(b, 5)
			ok = ok && index == 0
		default:
			bits := 4
			if first&0x40 != 0 {
				bits = 6
			}
			index, b, ok = readNumber(b, bits)
			name, _, ok = static(index, ok)
			if ok && index == 0 {
				name, b, ok = code.readString(b)
			}
			if ok {
				value, b, ok = code.readString(b)
			}
		}
		if !ok {
			return errReply("invalid header fields")
		}
		switch name {
		case ":status":
			a.http = value
		case "grpc-status":
			a.status = value
		case "grpc-message":
			a.text = value
		}
	}
	return nil
}

// static returns an entry of the static table (RFC 7541, appendix A). Names that gRPC does not use are empty.
func static(index int, ok bool) (name, value string, _ bool) {
	if statuses := [...]string{"200", "204", "206", "304", "400", "404", "500"}; index >= 8 && index < 8+len(statuses) {
		return ":status", statuses[index-8], ok
	}
	return "", "", ok && index <= 61
}

// readNumber reads a number whose first byte has it in the low bits.
func readNumber(b []byte, bits int) (n int, rest []byte, ok bool) {
	if len(b) == 0 {
		return 0, nil, false
	}
	most := 1<<bits - 1
	if n = int(b[0]) & most; n < most {
		return n, b[1:], true
	}
	for i, c := range b[1:] {
		n += int(c&0x7f) << (7 * i)
		if c&0x80 == 0 || i == 2 {
			return n, b[i+2:], c&0x80 == 0
		}
	}
	return 0, nil, false
}

// huffman is the code of RFC 7541, appendix B. It is canonical: the codes of a length are consecutive, in the order of their symbols.
type huffman struct {
	// symbols are sorted by the length of their codes; count has the number of codes of each length.
	symbols []int
	count   [31]int
}

// codeLengths has the lengths of the codes of all bytes and of the end of a string: 'A' is 5 bits.
const codeLengths = "ISXXXXXXXTZXXZXXXXXXXXZXXXXXXXXXBFFHIBDGFFDGDBBBAAABBBBBBBCDKBHF" +
	"IBCCCCCCCCCCCCCCCCCCCCCCDCDIOIJBKABABABBBACCBBBABCBAABCCCCCKGJIX" +
	"PRPPRRRSRSSSSSTSTTRSTSSSSQRSRSSTRQPRRSSQSRRTQRSSQQRQSRSSPRRRSRRS" +
	"VVPORSRUVVVWWVTUOQVWWVWTQQVVXWWWPTPQRQQSRRUUTTVSVWVVWWWWWXWWWWWVZ"

func newHuffman() *huffman {
	h := &huffman{}
	for length := range h.count {
		for symbol := range len(codeLengths) {
			if int(codeLengths[symbol])-'A'+5 == length {
				h.symbols = append(h.symbols, symbol)
				h.count[length]++
			}
		}
	}
	return h
}

// readString reads a string, as it is or in the Huffman code.
func (h *huffman) readString(b []byte) (s string, rest []byte, ok bool) {
	coded := len(b) > 0 && b[0]&0x80 != 0
	n, b, ok := readNumber(b, 7)
	if !ok || n > len(b) {
		return "", nil, false
	}
	if !coded {
		return string(b[:n]), b[n:], true
	}
	s, ok = h.decode(b[:n])
	return s, b[n:], ok
}

func (h *huffman) decode(in []byte) (string, bool) {
	var out bytes.Buffer
	// code has length bits. first is the first code of that length, whose symbol is symbols[index].
	code, length, first, index := 0, 0, 0, 0
	for i := range 8 * len(in) {
		code = code<<1 | int(in[i/8]>>(7-i%8))&1
		length++
		first <<= 1
		if n := code - first; n < h.count[length] {
			symbol := h.symbols[index+n]
			if symbol > 0xff {
				return "", false
			}
			out.WriteByte(byte(symbol))
			code, length, first, index = 0, 0, 0, 0
			continue
		}
		first += h.count[length]
		index += h.count[length]
	}
	return out.String(), length < 8 && code == 1<<length-1 // the rest are ones
}
