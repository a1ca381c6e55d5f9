package nft

// Element is one element of a set or map.
type Element struct {
	Shared bool `json:"shared,omitempty"`
	// Set names a set of the schema: "masq4", "macguard_pairs", …
	Set string `json:"set"`
	// Key has one text per field of the set's type: ["cni0", "10.22.0.0/16"].
	Key []string `json:"key"`
	// Value has one text per field of a map's data type. It is empty for a set.
	Value []string `json:"value,omitempty"`
	// Label names the owner. It is stored as the element's comment and has at
	// most 120 bytes.
	Label string `json:"label,omitempty"`
	// OrSet and OrKey name an element that CHECK accepts instead.
	OrSet string   `json:"-"`
	OrKey []string `json:"-"`
}
