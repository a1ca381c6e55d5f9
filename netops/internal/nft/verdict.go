package nft

import (
	"encoding/binary"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

// VerdictDrop and VerdictAccept are NF_DROP and NF_ACCEPT of linux/netfilter.h.
const (
	VerdictDrop   = 0
	VerdictAccept = 1
)

// A verdict is encoded as its code (4 bytes, big endian) and the chain's name.

// VerdictOf returns the part of a rule for a verdict in nft's syntax.
func VerdictOf(text string) (Part, error) {
	b, err := encodeVerdict(text)
	if err != nil {
		return nil, err
	}
	return leadTo(int32(binary.BigEndian.Uint32(b)), string(b[4:])), nil
}

func encodeVerdict(text string) ([]byte, error) {
	word, chain, _ := strings.Cut(text, " ")
	var code int32
	switch word {
	case "accept":
		code = VerdictAccept
	case "drop":
		code = VerdictDrop
	case "return":
		code = unix.NFT_RETURN
	case "jump":
		code = unix.NFT_JUMP
	case "goto":
		code = unix.NFT_GOTO
	default:
		return nil, fmt.Errorf("%q is not a verdict", text)
	}
	if named := code == unix.NFT_JUMP || code == unix.NFT_GOTO; named != (chain != "") {
		return nil, fmt.Errorf("%q is not a verdict: jump and goto must name a chain, others must not", text)
	}
	if len(chain) >= unix.NFT_NAME_MAXLEN || strings.ContainsFunc(chain, badInChain) {
		return nil, fmt.Errorf("%q is not a chain name", chain)
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(code)), chain...), nil
}

// VerdictText returns a verdict in nft's syntax.
func VerdictText(b []byte) string {
	if len(b) < 4 {
		return ""
	}
	chain := nlconn.Printable(nlconn.Text(b[4:]))
	switch code := int32(binary.BigEndian.Uint32(b)); code {
	case VerdictAccept:
		return "accept"
	case VerdictDrop:
		return "drop"
	case unix.NFT_CONTINUE:
		return "continue"
	case unix.NFT_RETURN:
		return "return"
	case unix.NFT_JUMP:
		return "jump " + chain
	case unix.NFT_GOTO:
		return "goto " + chain
	default:
		return fmt.Sprintf("verdict %d", code)
	}
}

// JumpTarget returns the chain to which a verdict leads, or "".
func JumpTarget(verdict string) string {
	if word, chain, _ := strings.Cut(verdict, " "); word == "jump" || word == "goto" {
		return chain
	}
	return ""
}

// badInChain reports whether nft would not print a rune of a chain name
// unchanged. nft accepts "/" within a word.
func badInChain(r rune) bool { return r != '/' && isInvalidInIfName(r) }
