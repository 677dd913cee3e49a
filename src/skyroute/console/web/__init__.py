"""What all pages are built with: templates, forms, actions and translated texts."""
