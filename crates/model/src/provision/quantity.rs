//! Sizes of volumes as Kubernetes writes them (`resource.Quantity`).

/// Most digits after which a number cannot be a size in bytes any more.
const MAX_DIGITS: u32 = 19;

/// The bytes of a quantity such as `10Gi`, `1.5G` or `1e9`, rounded up to whole bytes; none when it is no quantity, negative, or
/// more than an `int64` holds.
pub fn parse_bytes(text: &str) -> Option<i64> {
    let text = text.strip_prefix('+').unwrap_or(text);
    let number_end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(number_end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if fraction.contains('.') || (whole.is_empty() && fraction.is_empty()) {
        return None;
    }
    let whole = whole.trim_start_matches('0');
    let fraction = fraction.trim_end_matches('0');
    if whole.len() > MAX_DIGITS as usize || fraction.len() > MAX_DIGITS as usize {
        return None;
    }
    let digits: i128 = match format!("{whole}{fraction}").as_str() {
        "" => return Some(0),
        digits => digits.parse().ok()?,
    };
    // digits / 10^places * factor, where the factor may itself be below 1.
    let places = u32::try_from(fraction.len()).ok()?;
    let (factor, divisor) = multiplier(suffix)?;
    let divisor = divisor.checked_mul(10_i128.checked_pow(places)?)?;
    let product = digits.checked_mul(factor)?;
    let bytes = product.checked_add(divisor - 1)? / divisor;
    i64::try_from(bytes).ok()
}

/// The factor of a suffix as a fraction.
fn multiplier(suffix: &str) -> Option<(i128, i128)> {
    let decimal = |exponent: u32| Some((10_i128.pow(exponent), 1));
    let binary = |exponent: u32| Some((1_i128 << (10 * exponent), 1));
    match suffix {
        "" => Some((1, 1)),
        "n" => Some((1, 1_000_000_000)),
        "u" => Some((1, 1_000_000)),
        "m" => Some((1, 1_000)),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        _ => {
            let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            match (u32::try_from(exponent), u32::try_from(exponent.checked_neg()?)) {
                (Ok(exponent), _) if exponent <= MAX_DIGITS => decimal(exponent),
                (_, Ok(exponent)) if exponent <= MAX_DIGITS => Some((1, 10_i128.pow(exponent))),
                _ => None,
            }
        }
    }
}

/// Bytes as Kubernetes writes them in the binary format: the largest of `Ki` to `Ei` that leaves a whole number. Below 1024 the decimal
/// format counts, so that 1000 is `1k`.
pub fn format_bytes(bytes: i64) -> String {
    let (base, suffixes): (i64, &[&str]) = if bytes < 1024 {
        (1000, &["", "k"])
    } else {
        (1024, &["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"])
    };
    let (mut mantissa, mut suffix) = (bytes, "");
    for next in &suffixes[1..] {
        if mantissa == 0 || mantissa % base != 0 {
            break;
        }
        mantissa /= base;
        suffix = next;
    }
    format!("{mantissa}{suffix}")
}
