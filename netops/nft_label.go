package netops

import (
	"unicode/utf8"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

const (
	// maxLabel is the longest label in bytes; nft prints comments up to 127.
	maxLabel = 120
	// commentTag is NFTNL_UDATA_SET_ELEM_COMMENT, the tag under which nft
	// looks for an element's comment in its user data: tag, length, value.
	commentTag = 0
)

// cleanLabel is the label as it is stored: control characters, quotes,
// backslashes and broken UTF-8 become '?', since nft prints comments as they
// are, and it is cut to maxLabel bytes between characters.
func cleanLabel(label string) string {
	label = nlconn.Printable(label)
	if len(label) <= maxLabel {
		return label
	}
	cut := maxLabel
	for !utf8.RuneStart(label[cut]) {
		cut--
	}
	return label[:cut]
}

// labelUserData is the user data that makes nft show label as the comment.
func labelUserData(label string) []byte {
	return append(append([]byte{commentTag, byte(len(label) + 1)}, label...), 0)
}

// labelOf is the comment in an element's user data, empty if there is none.
// User data may be anybody's: nothing in it is trusted.
func labelOf(userData []byte) string {
	for len(userData) >= 2 {
		tag, length := userData[0], int(userData[1])
		value := userData[2:]
		if length > len(value) {
			return ""
		}
		if tag == commentTag {
			return nlconn.Printable(nlconn.UntilNUL(value[:length]))
		}
		userData = value[length:]
	}
	return ""
}
