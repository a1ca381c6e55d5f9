package roles

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
)

// StringList is the value of a key that accepts a string, or a list of strings.
type StringList []string

// StringListType names a StringList in JSON's terms.
const StringListType = "string or list of strings"

// UnmarshalJSON accepts a string, a list of strings and null.
func (l *StringList) UnmarshalJSON(raw []byte) error {
	if bytes.HasPrefix(bytes.TrimSpace(raw), []byte{'"'}) {
		*l = make(StringList, 1)
		return json.Unmarshal(raw, &(*l)[0])
	}
	err := json.Unmarshal(raw, (*[]string)(l))
	var te *json.UnmarshalTypeError
	if errors.As(err, &te) {
		te.Type = reflect.TypeFor[StringList]()
	}
	return err
}
