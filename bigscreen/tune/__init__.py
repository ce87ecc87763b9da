"""The search for parameters: landmarks, gamma and C (or nu), scored by cross-validation."""
