"""The search for parameters: kernel, landmarks, gamma and C (or nu), scored by cross-validation."""
