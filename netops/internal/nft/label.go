package nft

import (
	"unicode/utf8"

	"github.com/cnibox/cnibox/netops/internal/nlconn"
)

const (
	// MaxLabel is the largest length of a label in bytes. nft prints comments of
	// up to 127 bytes.
	MaxLabel = 120
	// commentTag is NFTNL_UDATA_SET_ELEM_COMMENT. nft finds an element's comment
	// in the user data by this tag. The format is tag, length, value.
	commentTag = 0
)

// CleanLabel returns the label in the form in which it is stored. Control
// characters, quotes, backslashes and invalid UTF-8 become '?', because nft
// prints comments unchanged. The label is cut to at most MaxLabel bytes at a
// character boundary.
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

// LabelUserData returns the user data that nft shows as the comment label.
func LabelUserData(label string) []byte {
	return append(append([]byte{commentTag, byte(len(label) + 1)}, label...), 0)
}

// LabelOf returns the comment in an element's user data, or an empty text. Any
// program may have written the user data, so it is validated.
func LabelOf(userData []byte) string {
	for len(userData) >= 2 {
		tag, length := userData[0], int(userData[1])
		value := userData[2:]
		if length > len(value) {
			return ""
		}
		if tag == commentTag {
			return nlconn.Printable(nlconn.Text(value[:length]))
		}
		userData = value[length:]
	}
	return ""
}
