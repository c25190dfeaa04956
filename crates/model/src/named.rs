//! Enums whose variants are words of an interface.

/// Defines such an enum: the word of a variant is its name, unless another one is given, and stands nowhere else.
#[macro_export]
macro_rules! named {
    ($(#[$meta:meta])* pub enum $type:ident { $($(#[$doc:meta])* $name:ident $(= $word:literal)?,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $type {
            $($(#[$doc])* $name,)+
        }

        impl $type {
            /// Every variant, in the order of the documentation.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// The word that the interface has for it.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $crate::named!(@word $name $($word)?),)+
                }
            }

            /// The one that the interface has this word for.
            pub fn of_word(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|known| known.as_str() == word)
            }
        }
    };
    (@word $name:ident) => {
        stringify!($name)
    };
    (@word $name:ident $word:literal) => {
        $word
    };
}
