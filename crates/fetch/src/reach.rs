//! Which addresses a server may send this pod to, by a redirect or as the place of an upload.
//!
//! A redirect of a public server to an address of the cluster, of this host or of a cloud's metadata service would use
//! this pod's place in the network against it. So a redirect only leads as far inwards as the endpoint itself lies,
//! which the user named. Names are judged by what they resolve to, at the time of the connection.

use hickory_resolver::TokioResolver;
use parking_lot::Mutex;
use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

/// How far inwards an address lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reach {
    /// The internet.
    Public,
    /// A private network, such as the cluster's.
    Private,
    /// This host.
    Loopback,
    /// This link, and the metadata services of clouds.
    Link,
}

/// Metadata services that have other addresses than link-local ones: Alibaba, Azure, Oracle, AWS by IPv6.
const METADATA: [IpAddr; 4] = [
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
];

/// How far inwards an address lies.
pub(crate) fn reach(address: IpAddr) -> Reach {
    if METADATA.contains(&address) {
        return Reach::Link;
    }
    match address {
        IpAddr::V4(address) => {
            let [a, b, c, _] = address.octets();
            match (a, b) {
                (0 | 127, _) => Reach::Loopback,
                (169, 254) | (224.., _) => Reach::Link,
                (10, _) | (172, 16..=31) | (192, 168) | (100, 64..=127) | (198, 18..=19) => Reach::Private,
                (192, 0) if c == 0 => Reach::Private,
                _ => Reach::Public,
            }
        }
        IpAddr::V6(address) => {
            let segments = address.segments();
            if let Some(inner) = address.to_ipv4_mapped() {
                return reach(IpAddr::V4(inner));
            }
            let [.., c, d] = segments;
            let inner = || {
                let ([a, b], [c, d]) = (c.to_be_bytes(), d.to_be_bytes());
                reach(IpAddr::V4(Ipv4Addr::new(a, b, c, d)))
            };
            match segments {
                [0, 0, 0, 0, 0, 0, 0, 0..=1] => Reach::Loopback,
                // IPv4 addresses in IPv6 ones: compatible, and translated by NAT64.
                [0, 0, 0, 0, 0, 0, ..] | [0x64, 0xff9b, ..] => inner(),
                [0xfe80..=0xfebf | 0xff00..=0xffff, ..] => Reach::Link,
                [0xfc00..=0xfdff | 0xfec0..=0xfeff, ..] => Reach::Private,
                _ => Reach::Public,
            }
        }
    }
}

/// An address that a server may not lead to.
#[derive(Debug)]
pub struct Forbidden {
    host: String,
    reach: Reach,
}

impl fmt::Display for Forbidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = match self.reach {
            Reach::Public => "a public address",
            Reach::Private => "an address of a private network",
            Reach::Loopback => "an address of this host",
            Reach::Link => "a link-local address, such as a metadata service's",
        };
        write!(f, "{} is {place}", self.host)
    }
}

impl std::error::Error for Forbidden {}

/// A host of tests: its name, its address, and how far inwards it is taken to lie.
pub(crate) type HostEntry = (String, SocketAddr, Reach);

/// Resolves names, and refuses those that lead further inwards than the endpoint lies.
#[derive(Clone)]
pub struct Guard(Arc<Inner>);

struct Inner {
    /// The endpoint and the proxies of the environment, wherever they lie.
    trusted: Vec<String>,
    endpoint: String,
    /// How far inwards the endpoint lies, as far as it has been resolved.
    limit: Mutex<Reach>,
    resolver: Mutex<Option<TokioResolver>>,
    hosts: Vec<HostEntry>,
}

impl Guard {
    /// For the servers that an endpoint leads to.
    #[must_use]
    pub fn from_endpoint(endpoint: &Url) -> Self {
        Self::new(endpoint, Vec::new())
    }

    /// The same. `hosts` are resolved as they say.
    pub(crate) fn new(endpoint: &Url, hosts: Vec<HostEntry>) -> Self {
        let name = endpoint.host_str().unwrap_or_default().to_owned();
        let mut trusted = proxies();
        trusted.push(name.clone());
        let limit = literal(endpoint).map_or(Reach::Public, reach);
        Self(Arc::new(Inner { trusted, endpoint: name, limit: Mutex::new(limit), resolver: Mutex::default(), hosts }))
    }

    /// Whether the endpoint may lead to a URL, as far as its text says. Names are judged when they are resolved.
    ///
    /// # Errors
    /// If the address in the URL lies further inwards than the endpoint.
    pub fn permits(&self, url: &Url) -> Result<(), Forbidden> {
        match literal(url) {
            Some(address) => self.judge(&address.to_string(), reach(address)),
            None => Ok(()),
        }
    }

    fn judge(&self, host: &str, reach: Reach) -> Result<(), Forbidden> {
        // What is link-local is never less than the endpoint itself.
        if reach <= *self.0.limit.lock() { Ok(()) } else { Err(Forbidden { host: host.to_owned(), reach }) }
    }

    async fn lookup(self, name: String) -> Result<Addrs, Box<dyn std::error::Error + Send + Sync>> {
        let found: Vec<(SocketAddr, Reach)> = match self.0.hosts.iter().find(|(host, ..)| *host == name) {
            Some((_, address, reach)) => vec![(*address, *reach)],
            None => {
                let resolver = self.resolver()?;
                let answer = resolver.lookup_ip(name.as_str()).await?;
                answer.iter().map(|ip| (SocketAddr::new(ip, 0), reach(ip))).collect()
            }
        };
        if name == self.0.endpoint {
            let innermost = found.iter().map(|(_, reach)| *reach).max().unwrap_or(Reach::Public);
            *self.0.limit.lock() = innermost;
        }
        if !self.0.trusted.contains(&name) {
            for (_, reach) in &found {
                self.judge(&name, *reach)?;
            }
        }
        Ok(Box::new(found.into_iter().map(|(address, _)| address)))
    }

    fn resolver(&self) -> Result<TokioResolver, Box<dyn std::error::Error + Send + Sync>> {
        let mut kept = self.0.resolver.lock();
        if let Some(resolver) = &*kept {
            return Ok(resolver.clone());
        }
        let mut builder = TokioResolver::builder_tokio()?;
        builder.options_mut().ip_strategy = hickory_resolver::config::LookupIpStrategy::Ipv6AndIpv4;
        Ok(kept.insert(builder.build()?).clone())
    }
}

impl Resolve for Guard {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(self.clone().lookup(name.as_str().to_owned()))
    }
}

fn literal(url: &Url) -> Option<IpAddr> {
    let host = url.host_str()?;
    host.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

/// The hosts of the proxies that the environment names, which are resolved like any other.
fn proxies() -> Vec<String> {
    ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"]
        .iter()
        .filter_map(|name| std::env::var(name).ok())
        .filter_map(|value| Url::parse(&value).or_else(|_| Url::parse(&format!("http://{value}"))).ok())
        .filter_map(|url| url.host_str().map(str::to_owned))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_classified_by_reach() {
        for (address, expected) in [
            ("1.1.1.1", Reach::Public),
            ("172.32.0.1", Reach::Public),
            ("100.128.0.1", Reach::Public),
            ("2606:4700::1111", Reach::Public),
            ("10.0.0.1", Reach::Private),
            ("172.31.255.255", Reach::Private),
            ("192.168.1.1", Reach::Private),
            ("100.64.0.1", Reach::Private),
            ("fd00::1", Reach::Private),
            ("127.0.0.1", Reach::Loopback),
            ("127.9.9.9", Reach::Loopback),
            ("0.0.0.0", Reach::Loopback),
            ("::1", Reach::Loopback),
            ("::", Reach::Loopback),
            ("::ffff:127.0.0.1", Reach::Loopback),
            ("::ffff:10.0.0.1", Reach::Private),
            ("64:ff9b::a9fe:a9fe", Reach::Link),
            ("169.254.169.254", Reach::Link),
            ("::ffff:169.254.169.254", Reach::Link),
            ("fe80::1", Reach::Link),
            ("fd00:ec2::254", Reach::Link),
            ("168.63.129.16", Reach::Link),
            ("100.100.100.200", Reach::Link),
            ("255.255.255.255", Reach::Link),
            ("224.0.0.1", Reach::Link),
        ] {
            assert_eq!(reach(address.parse().unwrap()), expected, "{address}");
        }
    }

    #[test]
    fn redirects_cannot_reach_further_inward_than_the_endpoint() {
        let guard = |endpoint: &str| Guard::new(&Url::parse(endpoint).unwrap(), Vec::new());
        let permits = |from: &str, to: &str| guard(from).permits(&Url::parse(to).unwrap()).is_ok();
        for (from, to, expected) in [
            ("https://hub.example", "https://cdn.example/x", true),
            ("https://hub.example", "https://1.1.1.1/x", true),
            ("https://hub.example", "https://10.0.0.1/x", false),
            ("https://hub.example", "https://127.0.0.1/x", false),
            ("https://hub.example", "http://169.254.169.254/latest", false),
            ("https://hub.example", "https://[::1]/x", false),
            ("https://hub.example", "https://2130706433/x", false),
            ("https://hub.example", "https://0x7f.1/x", false),
            ("https://10.0.0.1", "https://10.0.0.2/x", true),
            ("https://10.0.0.1", "https://127.0.0.1/x", false),
            ("http://127.0.0.1:1", "http://127.0.0.1:2/x", true),
            ("http://127.0.0.1:1", "http://169.254.169.254/x", false),
            ("http://169.254.1.1", "http://169.254.169.254/x", true),
        ] {
            assert_eq!(permits(from, to), expected, "{from} to {to}");
        }
    }
}
