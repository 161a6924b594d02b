//! Sums of rows that consist of figures.

pub trait Sums: Clone + Default {
    /// What is added up.
    fn figures(&mut self) -> Vec<&mut u64>;

    fn sum<'a>(rows: impl IntoIterator<Item = &'a Self>) -> Self
    where
        Self: 'a,
    {
        rows.into_iter().fold(Self::default(), |mut sum, row| {
            for (to, from) in sum.figures().into_iter().zip(row.clone().figures()) {
                *to = to.saturating_add(*from);
            }
            sum
        })
    }
}
