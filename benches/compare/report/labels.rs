//! Labels beside the ends of lines, none over another.

/// For each wanted place the nearest possible one, all within `low` to `high` and at least `gap` apart (less
/// only if there is no room).
///
/// Without the gaps between them the places only have to rise; so this is a regression under that
/// condition: neighbours that are out of order take their common mean.
pub(crate) fn spread(wanted: &[f64], gap: f64, low: f64, high: f64) -> Vec<f64> {
    let gaps = wanted.len().saturating_sub(1) as f64;
    let gap = if gaps * gap > high - low { (high - low) / gaps } else { gap };
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by(|a, b| wanted[*a].total_cmp(&wanted[*b]));

    let mut groups: Vec<Group> = Vec::new();
    for (rank, index) in order.iter().enumerate() {
        let mut group = Group { sum: wanted[*index] - rank as f64 * gap, size: 1 };
        while let Some(above) = groups.last().filter(|above| above.mean() > group.mean()) {
            group = Group { sum: above.sum + group.sum, size: above.size + group.size };
            groups.pop();
        }
        groups.push(group);
    }

    let means = groups.iter().flat_map(|group| std::iter::repeat_n(group.mean(), group.size));
    let mut places = vec![0.0; wanted.len()];
    for ((rank, index), mean) in order.iter().enumerate().zip(means) {
        places[*index] = mean.clamp(low, (high - gaps * gap).max(low)) + rank as f64 * gap;
    }
    places
}

struct Group {
    sum: f64,
    size: usize,
}

impl Group {
    fn mean(&self) -> f64 {
        self.sum / self.size as f64
    }
}
