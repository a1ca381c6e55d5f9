package redact_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/cnibox/cnibox/internal/redact"
)

func TestJSON(t *testing.T) {
	for name, c := range map[string]struct{ in, want string }{
		"nothing secret":       {`{ "type": "bridge",  "mtu": 1400 }`, `{ "type": "bridge",  "mtu": 1400 }`},
		"names":                {`{"Pass-Word":"x","client_secret":["y"],"a":{"API.Key":{"z":1}}}`, `{"Pass-Word":"REDACTED","a":{"API.Key":"REDACTED"},"client_secret":"REDACTED"}`},
		"numbers stay":         {`{"psk":1,"n":18446744073709551617}`, `{"n":18446744073709551617,"psk":"REDACTED"}`},
		"an escaped name":      {`{"\u0070sk":"x"}`, `{"psk":"REDACTED"}`},
		"JSON in a string":     {`{"delegate":"{\"token\":\"x\",\"mtu\":1}"}`, `{"delegate":"{\"mtu\":1,\"token\":\"REDACTED\"}"}`},
		"twice in a string":    {`{"a":"[\"{\\\"token\\\":1}\"]"}`, `{"a":"[\"{\\\"token\\\":\\\"REDACTED\\\"}\"]"}`},
		"arguments":            {`{"args":"K8S_POD_NAME=web;TOKEN=x"}`, `{"args":"K8S_POD_NAME=web;TOKEN=REDACTED"}`},
		"a URL":                {`{"endpoint":"https://me:pw@10.0.0.1:2379/v3"}`, `{"endpoint":"https://REDACTED@10.0.0.1:2379/v3"}`},
		"several URLs":         {`{"endpoints":"http://a/,http://me:pw@b,http://me:pw@c"}`, `{"endpoints":"http://a/,http://REDACTED@b,http://REDACTED@c"}`},
		"other separators":     {`{"options":"user=me password=x","b":"mtu=1\npsk=x"}`, `{"b":"mtu=1\npsk=REDACTED","options":"user=REDACTED"}`},
		"a variable":           {`{"env":[{"name":"DB_PASSWORD","value":"x"},{"name":"A","value":"y"},{"name":"token"}]}`, `{"env":[{"name":"DB_PASSWORD","value":"REDACTED"},{"name":"A","value":"y"},{"name":"token"}]}`},
		"a flag":               {`["--token","x","y","--token=x","z","token","y","--psk"]`, `["--token","REDACTED","y","--token=REDACTED","z","token","y","--psk"]`},
		"an at in a path":      {`{"endpoint":"https://10.0.0.1/a@b"}`, `{"endpoint":"https://10.0.0.1/a@b"}`},
		"not JSON":             {`{"type": "bridge"`, `{"type": "bridge"`},
		"not JSON and secret":  {`{"password": "x`, `REDACTED`},
		"two documents":        {`{"password": 1}{"password": "x"}`, `REDACTED`},
		"short names":          {`{"pwd":"x","auth":"x","pass":"x","key":"x","tlsKey":"x","X-Sig":"x","passthru":"y","author":"y","keyring":"y"}`, `{"X-Sig":"REDACTED","auth":"REDACTED","author":"y","key":"REDACTED","keyring":"y","pass":"REDACTED","passthru":"y","pwd":"REDACTED","tlsKey":"REDACTED"}`},
		"headers":              {`{"headers":["Authorization: Digest x","X-Auth-Id: x","Accept: y"]}`, `{"headers":["Authorization: REDACTED","X-Auth-Id: REDACTED","Accept: y"]}`},
		"headers by name":      {`{"headers":[{"key":"X-Auth","value":"x"},["Cookie","x"],{"header":"Accept","value":"y"}]}`, `{"headers":[{"key":"REDACTED","value":"REDACTED"},["Cookie","REDACTED"],{"header":"Accept","value":"y"}]}`},
		"URL parameters":       {`{"u":"https://h/c?sv=1&sig=x%2F&se=2#access_token=x and http://h/?%73ig=x"}`, `{"u":"https://h/c?sv=1&sig=REDACTED&se=2#access_token=REDACTED and http://h/?%73ig=REDACTED"}`},
		"URLs in arguments":    {`{"a":"A=http://a/;B=http://me:pw@b","b":"https://h/?next=http://me:pw@b","c":"http://a|http://me:pw@b"}`, `{"a":"A=http://a/;B=http://REDACTED@b","b":"https://h/?next=http://REDACTED@b","c":"http://a|http://REDACTED@b"}`},
		"secrets beside URLs":  {`{"a":"TOKEN=x,URL=https://y","b":"--token=x --server=https://y","c":"PASSWORD=x://y"}`, `{"a":"TOKEN=REDACTED","b":"--token=REDACTED","c":"PASSWORD=REDACTED"}`},
		"YAML":                 {`{"c":"user: me\npassword: x\nenv:\n- name: API_KEY\n  value: x\ntls:\n  key: |\n    x\n    x\n"}`, `{"c":"{\"env\":[{\"name\":\"API_KEY\",\"value\":\"REDACTED\"}],\"password\":\"REDACTED\",\"tls\":{\"key\":\"REDACTED\"},\"user\":\"me\"}"}`},
		"flow YAML":            {`{"c":"{user: me, password: x}"}`, `{"c":"{\"password\":\"REDACTED\",\"user\":\"me\"}"}`},
		"refused YAML":         {`{"c":"{password: &a x}"}`, `{"c":"REDACTED"}`},
		"lines":                {`{"c":"GET / HTTP/1.1\r\nX-Auth: x\r\nHost: h"}`, `{"c":"GET / HTTP/1.1\r\nX-Auth: REDACTED\r\nHost: h"}`},
		"forms":                {`{"a":"use Bearer x, AKIAIOSFODNN7EXAMPLE","b":"eyJhbGciOiJIUzI1NiJ9.x.y","c":"-----BEGIN EC PRIVATE KEY-----\nx\n","d":"eyJ"}`, `{"a":"use Bearer REDACTED, REDACTED","b":"REDACTED","c":"REDACTED","d":"eyJ"}`},
		"a certificate stays":  {`{"caData":"-----BEGIN CERTIFICATE-----\ny\n-----END CERTIFICATE-----"}`, `{"caData":"-----BEGIN CERTIFICATE-----\ny\n-----END CERTIFICATE-----"}`},
		"markup is not quoted": {`{"token":1,"a":"<b>"}`, `{"a":"<b>","token":"REDACTED"}`},
	} {
		got := string(redact.JSON([]byte(c.in)))
		if got != c.want {
			t.Errorf("%s: %s", name, got)
		}
	}
	if got := redact.JSON([]byte(nested(`{"token":"hunter2"}`, 6))); strings.Contains(string(got), "hunter2") {
		t.Errorf("deep in strings: %s", got)
	}
}

// nested puts a text into a string of JSON n times.
func nested(text string, n int) string {
	for range n {
		b, _ := json.Marshal(map[string]string{"a": text})
		text = string(b)
	}
	return text
}

// FuzzJSON: a secret that JSON can express never remains, and the result is JSON if the input was.
func FuzzJSON(f *testing.F) {
	for _, s := range []string{`{"token":"hunter2"}`, `["a=b;psk=hunter2"]`, `{"a":"{\"token\":\"hunter2\"}"}`, `{"a":"http://u:hunter2@x"}`, `{"token":"hunter2"`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		out := redact.JSON(in)
		if json.Valid(in) && !json.Valid(out) && string(out) != redact.Placeholder {
			t.Errorf("%q became %q", in, out)
		}
		var v map[string]any
		if json.Unmarshal(out, &v) == nil {
			if s, is := v["token"].(string); is && s != redact.Placeholder {
				t.Errorf("%q became %q", in, out)
			}
		}
	})
}
