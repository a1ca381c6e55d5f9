package netops

// Net is the kernel's networking as roles see it. It is safe for one call at a time.
type Net struct{}
