package nft

import (
	"unicode/utf8"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

const (
	// MaxLabel is the longest label in bytes; nft prints comments up to 127.
	MaxLabel = 120
	// commentTag is NFTNL_UDATA_SET_ELEM_COMMENT, the tag under which nft
	// looks for an element's comment in its user data: tag, length, value.
	commentTag = 0
)

// CleanLabel is the label as it is stored: control characters, quotes,
// backslashes and broken UTF-8 become '?', since nft prints comments as they
// are, and it is cut to MaxLabel bytes between characters.
func CleanLabel(label string) string {
	label = nlconn.Printable(label)
	if len(label) <= MaxLabel {
		return label
	}
	cut := MaxLabel
	for !utf8.RuneStart(label[cut]) {
		cut--
	}
	return label[:cut]
}

// LabelUserData is the user data that makes nft show label as the comment.
func LabelUserData(label string) []byte {
	return append(append([]byte{commentTag, byte(len(label) + 1)}, label...), 0)
}

// LabelOf is the comment in an element's user data, empty if there is none.
// User data may be anybody's: nothing in it is trusted.
func LabelOf(userData []byte) string {
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
