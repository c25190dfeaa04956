//! Sizes of volumes as Kubernetes writes them (`resource.Quantity`).

/// Most digits on each side of the point. The API server holds an amount of at most an `int64` to 10^-9, and writes one that is no whole
/// number of bytes without a point: `10.1Pi` is `11371589059110502400m`.
const MAX_DIGITS: usize = 19 + 9;
/// The largest power of ten, up or down, that can make a size in bytes.
const MAX_EXPONENT: u32 = 19;
/// The suffixes of the decimal format from 10^-9 on, each a thousand times the one before.
const DECIMAL: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
/// The suffixes of the binary format, each 1024 times the one before.
const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

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
    if whole.len() > MAX_DIGITS || fraction.len() > MAX_DIGITS {
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
    let place = |suffixes: &[&str]| suffixes.iter().position(|known| *known == suffix);
    if let Some(at) = place(&BINARY) {
        return Some((1_i128 << (10 * at), 1));
    }
    let exponent = match place(&DECIMAL) {
        Some(at) => 3 * i32::try_from(at).ok()? - 9,
        None => suffix.strip_prefix(['e', 'E'])?.parse().ok()?,
    };
    let digits = exponent.unsigned_abs();
    let power = (digits <= MAX_EXPONENT).then(|| 10_i128.pow(digits))?;
    Some(if exponent < 0 { (1, power) } else { (power, 1) })
}

/// Bytes as Kubernetes writes them in the binary format: the largest of `Ki` to `Ei` that leaves a whole number. Below 1024 the decimal
/// format counts, so that 1000 is `1k`.
pub fn format_bytes(bytes: i64) -> String {
    let (base, suffixes): (i64, &[&str]) = if bytes < 1024 {
        (1000, &["", "k"])
    } else {
        (1024, &BINARY)
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
