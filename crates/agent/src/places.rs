//! Chooses the connection to close if there are too many.

use std::collections::HashMap;
use std::net::IpAddr;

/// Chooses from connections, given by the address of the other side and an order. The result is the first in order of
/// the address that holds the most, so a client that holds many connections only loses its own. `None` only if there
/// are none.
pub fn who_gives_way<O: Ord>(held: impl Iterator<Item = (IpAddr, O)> + Clone) -> Option<usize> {
    let mut of_address: HashMap<IpAddr, usize> = HashMap::new();
    held.clone().for_each(|(address, _)| *of_address.entry(address.to_canonical()).or_default() += 1);
    let order = |(address, order): (IpAddr, O)| (std::cmp::Reverse(of_address[&address.to_canonical()]), order);
    held.map(order).enumerate().min_by(|(_, a), (_, b)| a.cmp(b)).map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(held: &[(&str, u32)]) -> Option<usize> {
        who_gives_way(held.iter().map(|(address, order)| (address.parse().unwrap(), *order)))
    }

    #[test]
    fn first_connection_of_the_busiest_address_is_closed() {
        assert_eq!(chosen(&[]), None);
        assert_eq!(chosen(&[("10.0.0.1", 1), ("10.0.0.2", 3), ("10.0.0.2", 2), ("10.0.0.3", 0)]), Some(2));
        assert_eq!(chosen(&[("10.0.0.1", 1), ("10.0.0.2", 0)]), Some(1), "of as many the first");
        assert_eq!(chosen(&[("fd00::1", 0), ("::ffff:10.0.0.2", 2), ("10.0.0.2", 1)]), Some(2), "one address");
    }
}
